// sum64: of every chunk, the sum over its 64-bit words w[i] of w[i] * (2 i + 1), modulo 2^64.
//
// Any change inside one word changes the sum (an odd factor is invertible modulo 2^64), so every single flipped bit is
// found; words that changed places are found too. One block sums one chunk and writes one word: no atomics, one pass.
// hack/generate-kernel makes sum64.ptx of this file; the driver compiles that for whatever GPU it finds.

constexpr unsigned THREADS = 256;
constexpr unsigned AHEAD = 8;  // loads of 16 bytes in flight a thread

extern "C" __global__ void __launch_bounds__(THREADS)
sum64(const ulonglong2 *start, unsigned long long nbytes, unsigned long long chunk, unsigned long long *sums)
{
    const unsigned long long first = blockIdx.x * chunk;
    const unsigned long long rest = nbytes - first;
    const unsigned pairs = (rest < chunk ? rest : chunk) / sizeof(ulonglong2);
    const ulonglong2 *words = start + first / sizeof(ulonglong2);

    unsigned long long sum = 0;
    unsigned at = threadIdx.x;
    for (; at + (AHEAD - 1) * THREADS < pairs; at += AHEAD * THREADS) {
        ulonglong2 pair[AHEAD];
#pragma unroll
        for (unsigned i = 0; i < AHEAD; ++i)
            pair[i] = __ldcs(words + at + i * THREADS);
#pragma unroll
        for (unsigned i = 0; i < AHEAD; ++i) {
            const unsigned long long factor = 4 * (at + i * THREADS) + 1;
            sum += pair[i].x * factor + pair[i].y * (factor + 2);
        }
    }
    for (; at < pairs; at += THREADS) {
        const ulonglong2 pair = __ldcs(words + at);
        sum += pair.x * (4 * at + 1) + pair.y * (4 * at + 3);
    }

    __shared__ unsigned long long warps[THREADS / 32];
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned warp = 1; warp < THREADS / 32; ++warp)
            sum += warps[warp];
        sums[blockIdx.x] = sum;
    }
}
