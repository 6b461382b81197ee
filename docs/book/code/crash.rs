//! Panics at the third order.

fn price(list: &[u32], item: usize) -> u32 {
    list[item]
}

fn order(list: &[u32], item: usize) -> u32 {
    price(list, item) + 1
}

fn main() {
    for item in [0, 1, 3] {
        println!("order {}", order(&[5, 7, 9], item));
    }
}
