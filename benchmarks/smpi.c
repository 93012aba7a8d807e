/* What SimGrid's SMPI is asked to time: `smpi allreduce|incast|pairs|rounds|cycle BYTES`. Each rank prints the
   virtual seconds that its part took. No barrier before the clock: ranks leave one at different times. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 5, ROUNDS = 10 };

static int rank, ranks;

/* MPI's own; --cfg=smpi/allreduce:... says by which algorithm. */
static void allreduce(char *x, int bytes) {
    char *sum = calloc(bytes, 1);
    MPI_Allreduce(x, sum, bytes / sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    free(sum);
}

/* All others send to rank 0 at once. */
static void incast(char *x, int bytes) {
    if (rank) {
        MPI_Send(x, bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        return;
    }
    MPI_Request *requests = malloc(ranks * sizeof *requests);
    char *arriving = malloc((size_t)ranks * bytes);
    for (int other = 1; other < ranks; other++)
        MPI_Irecv(arriving + (size_t)other * bytes, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[other]);
    MPI_Waitall(ranks - 1, requests + 1, MPI_STATUSES_IGNORE);
    free(requests);
    free(arriving);
}

/* Each rank of the first half sends to its partner in the second. */
static void pairs(char *x, int bytes) {
    int half = ranks / 2;
    if (rank < half)
        MPI_Send(x, bytes, MPI_BYTE, rank + half, TAG, MPI_COMM_WORLD);
    else
        MPI_Recv(x, bytes, MPI_BYTE, rank - half, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* The same several times in a row. */
static void rounds(char *x, int bytes) {
    for (int round = 0; round < ROUNDS; round++)
        pairs(x, bytes);
}

/* Everyone sends to the right before it receives from the left. */
static void cycle(char *x, int bytes) {
    MPI_Send(x, bytes, MPI_BYTE, (rank + 1) % ranks, TAG, MPI_COMM_WORLD);
    MPI_Recv(x, bytes, MPI_BYTE, (rank + ranks - 1) % ranks, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static const struct { const char *name; void (*run)(char *, int); } PROGRAMS[] = {
    {"allreduce", allreduce}, {"incast", incast}, {"pairs", pairs}, {"rounds", rounds}, {"cycle", cycle},
};

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int bytes = atoi(argv[2]);
    char *x = calloc(bytes, 1);
    for (size_t k = 0; k < sizeof PROGRAMS / sizeof *PROGRAMS; k++)
        if (!strcmp(argv[1], PROGRAMS[k].name)) {
            double start = MPI_Wtime();
            PROGRAMS[k].run(x, bytes);
            printf("%.17g\n", MPI_Wtime() - start);
        }
    free(x);
    MPI_Finalize();
    return 0;
}
