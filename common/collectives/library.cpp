#include "common/collectives/library.hpp"

#include <limits>
#include <vector>

#include <fmt/format.h>

#include "common/element_sum.hpp"
#include "common/partition.hpp"

namespace rankwise {

namespace {

/// MPI's name for a type; bf16 travels as 16-bit words.
MPI_Datatype mpi_type(DType type)
{
  switch (type) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::bf16:
      return MPI_UINT16_T;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i64:
      return MPI_INT64_T;
    case DType::u8:
      return MPI_BYTE;
  }
  throw Error("a type that MPI has no name for");
}

void add_bf16(void* in, void* in_out, int* count, MPI_Datatype*)
{
  add_elements(DType::bf16, in_out, in, *count);
}

/// The sum of two elements as MPI calls it.
class SumOperation {
 public:
  explicit SumOperation(DType type)
  {
    check_summable(type);
    if (type != DType::bf16) return;
    check_mpi(MPI_Op_create(add_bf16, 1, &operation_), "telling MPI how to add bf16");
    own_ = true;
  }
  ~SumOperation()
  {
    if (own_) MPI_Op_free(&operation_);
  }
  SumOperation(const SumOperation&) = delete;
  SumOperation& operator=(const SumOperation&) = delete;

  MPI_Op handle() const { return operation_; }

 private:
  MPI_Op operation_ = MPI_SUM;
  bool own_ = false;
};

/// MPI counts in int.
int mpi_count(std::int64_t n)
{
  check(n <= std::numeric_limits<int>::max(), fmt::format("MPI's collectives take no {} elements at once", n));
  return static_cast<int>(n);
}

/// Sizes and places of all segments, as MPI wants them.
struct MpiSegments {
  std::vector<int> counts, places;

  MpiSegments(std::int64_t n, int ranks)
  {
    for (int r = 0; r < ranks; ++r) {
      const Range segment = Partition(n, ranks).segment(r);
      counts.push_back(mpi_count(segment.count));
      places.push_back(mpi_count(segment.first));
    }
  }
};

}  // namespace

void library_reduce_scatter_sum(const Tensor& values, Group& group)
{
  const SumOperation sum(values.type());
  const MpiSegments segments(values.elements(), group.ranks());
  const Range own = Partition(values.elements(), group.ranks()).segment(group.rank());
  const Tensor result = group.scratch(values.type(), own.count);
  check_mpi(MPI_Reduce_scatter(values.raw(), result.raw(), segments.counts.data(), mpi_type(values.type()),
                               sum.handle(), group.communicator().handle()),
            "MPI_Reduce_scatter");
  if (!own.empty()) group.transport().stream().copy(values.slice(own), result);
  group.count("reduce-scatter", {.bytes = values.bytes()});
}

void library_all_gather(const Tensor& values, Group& group)
{
  const MpiSegments segments(values.elements(), group.ranks());
  check_mpi(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.raw(), segments.counts.data(),
                           segments.places.data(), mpi_type(values.type()), group.communicator().handle()),
            "MPI_Allgatherv");
  const Range own = Partition(values.elements(), group.ranks()).segment(group.rank());
  group.count("all-gather", {.bytes = own.count * bytes_of(values.type())});
}

void library_all_reduce_sum(const Tensor& values, Group& group)
{
  const SumOperation sum(values.type());
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.raw(), mpi_count(values.elements()), mpi_type(values.type()),
                          sum.handle(), group.communicator().handle()),
            "MPI_Allreduce");
  group.count("all-reduce", {.bytes = values.bytes()});
}

void library_broadcast(const Tensor& values, int root, Group& group)
{
  check_mpi(MPI_Bcast(values.raw(), mpi_count(values.elements()), mpi_type(values.type()), root,
                      group.communicator().handle()),
            "MPI_Bcast");
  if (group.rank() == root) group.count("broadcast", {.bytes = values.bytes()});
}

void library_reduce_sum(const Tensor& values, int root, Group& group)
{
  const SumOperation sum(values.type());
  const bool here = group.rank() == root;
  check_mpi(
      MPI_Reduce(here ? MPI_IN_PLACE : values.raw(), here ? values.raw() : nullptr, mpi_count(values.elements()),
                 mpi_type(values.type()), sum.handle(), root, group.communicator().handle()),
      "MPI_Reduce");
  group.count("reduce", {.bytes = values.bytes()});
}

void library_barrier(Group& group)
{
  check_mpi(MPI_Barrier(group.communicator().handle()), "MPI_Barrier");
}

}  // namespace rankwise
