#include <cstring>
#include <new>
#define F __attribute__((noipa))
namespace app { F int draw(int n) { asm volatile(""); return n + 1; }
F int draw(const char *text) { asm volatile(""); return text[0]; }
template <class T> F T twice(T n) { return draw(1) + n; }
struct Shape { int side = 2; F virtual int area() const { return side * side; } F Shape() { asm volatile(""); } F ~Shape() { asm volatile(""); } }; }
F int fails(int n) { if (n) throw n; return n; }
int main() { for (int i = 0; i < 3; i++) app::draw(i); app::Shape shape; try { fails(1); } catch (int) { fails(0); }
  return (app::draw("") + app::twice(0) - app::twice(1L) + shape.area()) & 0; }
