#include <cstdio>
#include <mpi.h>

/// Starts MPI, says so and ends: what every program of MPI takes before its own work begins (scripts/bench/bench_lessons.py).
int main(int argc, char** argv)
{
  MPI_Init(&argc, &argv);
  std::puts("started");
  std::fflush(stdout);
  return MPI_Finalize();
}
