// Maps of strings, lists and trees, in so many threads: about two million allocations in all.
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

struct Tree {
    std::unique_ptr<Tree> left, right;
    std::string name;
};

static std::unique_ptr<Tree> grow(int depth, unsigned &seed) {
    if (depth == 0) return nullptr;
    auto tree = std::make_unique<Tree>();
    seed = seed * 1664525 + 1013904223;
    tree->name = std::string(8 + seed % 40, 'x');
    tree->left = grow(depth - 1, seed);
    tree->right = grow(depth - 1, seed);
    return tree;
}

static size_t count(const Tree *tree) {
    return tree ? tree->name.size() + count(tree->left.get()) + count(tree->right.get()) : 0;
}

static size_t fill(unsigned seed) {
    std::map<std::string, std::list<std::string>> map;
    for (int i = 0; i < 3000; i++) {
        seed = seed * 1664525 + 1013904223;
        auto &list = map["a key that is long enough " + std::to_string(seed % 1000)];
        list.push_back(std::string(20 + seed % 60, 'y'));
        if (list.size() > 3) list.pop_front();
    }
    size_t sum = 0;
    for (auto &[key, list] : map)
        for (auto &text : list) sum += text.size();
    return sum;
}

static void work(int rounds, unsigned seed, size_t *sum) {
    for (int i = 0; i < rounds; i++) {
        auto tree = grow(12, seed);
        *sum += count(tree.get()) + fill(seed);
    }
}

int main(int argc, char **argv) {
    int n_threads = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 120;
    std::vector<size_t> sums(n_threads);
    if (n_threads == 1) work(rounds, 1, &sums[0]);
    else {
        std::vector<std::thread> threads;
        for (int i = 0; i < n_threads; i++) threads.emplace_back(work, rounds / n_threads, i, &sums[i]);
        for (auto &thread : threads) thread.join();
    }
    size_t sum = 0;
    for (auto part : sums) sum += part;
    printf("%zu\n", sum);
}
