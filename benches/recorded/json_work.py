import json, sys, threading
def value(depth, n):
    if depth == 0:
        return [i * 0.5 for i in range(3)] + ["text %d" % n, None, True]
    return {"key%d" % i: value(depth - 1, n * 4 + i) for i in range(4)}
def work(rounds):
    text = json.dumps(value(5, 1))
    for _ in range(rounds):
        parsed = json.loads(text)
        text = json.dumps(parsed, indent=1)
def main():
    n, rounds = int(sys.argv[1]), int(sys.argv[2])
    threads = [threading.Thread(target=work, args=(rounds // n,)) for _ in range(n)]
    for t in threads: t.start()
    for t in threads: t.join()
main()
