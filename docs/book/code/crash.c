// Crashes at the third order.
#include <stdio.h>

static int price(const int *list, int item) { return list[item]; }

static int order(const int *list, int item) { return price(list, item) + 1; }

int main(void) {
    static const int list[] = {5, 7, 9};
    const int *lists[] = {list, list, NULL};
    for (int i = 0; i < 3; i++) printf("order %d\n", order(lists[i], i)), fflush(stdout);
}
