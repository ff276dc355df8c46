/* MPI_Allreduce(float, sum, out of place) in C, in collbench's cadence; mpi_native.py compiles it and asks it.
 * mpirun -n N mpi_loop BOARD. BOARD is a file of zeros, laid out as collbench/launch/board.py says, with one line more:
 * number of the question, bytes (-1: end), slots, inner, samples; number answered, the median over samples of the ns
 * that a call took the slowest rank. Between questions ranks sleep. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int rank, n;
static volatile long *words;

static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }
static int ascending(const void *a, const void *b) { return (*(long *)a > *(long *)b) - (*(long *)a < *(long *)b); }

static int meet(void) { /* whether this rank was late */
    long round = words[(rank + 1) * 8 + 3] + 1, previous = words[0], deadline;
    words[(rank + 1) * 8 + 3] = round;
    for (int r = 1; rank == 0 && r < n; r++) while (words[(r + 1) * 8 + 3] < round) ;
    if (rank == 0) words[0] = now() + 200000;
    while ((deadline = words[0]) == previous) ;
    int late = now() >= deadline;
    while (now() < deadline) ;
    return late;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &n);
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(rank, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
    words = mmap(0, (n + 2) * 64, PROT_READ | PROT_WRITE, MAP_SHARED, open(argv[1], O_RDWR), 0);
    volatile long *asked = words + (n + 1) * 8;
    for (long question = 1;; question++) {
        while (asked[0] < question) usleep(20000);
        long bytes = asked[1], slots = asked[2], inner = asked[3], samples = asked[4], kept = 0, turn = 0;
        if (bytes < 0) break;
        long stride = (bytes + 4095) / 4096 * 4096, took[samples];
        char *raw = aligned_alloc(4096, 2 * slots * stride);
        for (long i = 0; i < 2 * slots * stride / 4; i++) ((float *)raw)[i] = rank + i % 1021; /* as values may matter */
        for (long i = -samples / 4 - 10; i < samples; i++) { /* the first are warm-up */
            int late = meet();
            long begin = now();
            for (long j = 0; j < inner; j++, turn = (turn + 1) % slots)
                MPI_Allreduce(raw + 2 * turn * stride, raw + (2 * turn + 1) * stride, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            long end = now();
            if (i >= 0) took[i] = late ? LONG_MAX : (end - begin) / inner;
        }
        MPI_Allreduce(MPI_IN_PLACE, took, samples, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
        qsort(took, samples, 8, ascending);
        while (kept < samples && took[kept] < LONG_MAX) kept++;
        if (rank == 0) asked[6] = took[kept / 2], asked[5] = question;
        free(raw);
    }
    return MPI_Finalize();
}
