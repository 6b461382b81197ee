trait Speak { fn speak(&self) -> usize; }
struct Dog;
impl Speak for Dog { #[inline(never)] fn speak(&self) -> usize { std::hint::black_box(3) } }
#[inline(never)] fn of<T: Speak>(speaker: &T) -> usize { std::hint::black_box(speaker.speak()) + 1 }
mod inner { #[inline(never)] pub fn add(a: usize, b: &usize) -> usize { std::hint::black_box(a) + b }
  #[inline(never)] pub fn sum(parts: &[usize]) -> usize { parts.iter().fold(0, add) } }
fn main() { std::process::exit((inner::sum(&[of(&Dog), of(&Dog)]) != 8) as i32) }
