/* Compresses text that it makes up, block by block: the argument says how many. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "zstd.h"

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1;
	static char text[4096], packed[8192], back[4096];
	unsigned long sum = 0, seed = 1;
	for (int i = 0; i < n; i++) {
		for (size_t j = 0; j < sizeof text; j++) {
			seed = seed * 6364136223846793005ul + 1442695040888963407ul;
			text[j] = "etaoin shrdlu"[(seed >> 33) % 13];
		}
		size_t size = ZSTD_compress(packed, sizeof packed, text, sizeof text, 3);
		if (ZSTD_decompress(back, sizeof back, packed, size) != sizeof text || memcmp(text, back, sizeof text))
			return 1;
		sum += size;
	}
	return sum == 0;
}
