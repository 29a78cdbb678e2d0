// MPI's profiling interface sees every call of this program: the traffic ledger counts exactly what is sent, and all MPI
// objects are freed.

#include <fmt/format.h>

#include "common/messages/mesh.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

/// Counts of calls so far.
struct Calls {
  Traffic sent;
  int requests_started = 0, requests_finished = 0;
  int communicators_made = 0, communicators_freed = 0;
  int windows_made = 0, windows_freed = 0;
  int operations_made = 0, operations_freed = 0;
};
Calls calls;

}  // namespace

extern "C" {

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request)
{
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  calls.sent += {.messages = 1, .bytes = static_cast<std::int64_t>(bytes) * count};
  ++calls.requests_started;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request)
{
  ++calls.requests_started;
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

int MPI_Waitall(int count, MPI_Request* requests, MPI_Status* statuses)
{
  calls.requests_finished += count;
  return PMPI_Waitall(count, requests, statuses);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy)
{
  ++calls.communicators_made;
  return PMPI_Comm_dup(comm, copy);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part)
{
  ++calls.communicators_made;
  return PMPI_Comm_split(comm, color, key, part);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* part)
{
  ++calls.communicators_made;
  return PMPI_Comm_split_type(comm, type, key, info, part);
}

int MPI_Comm_free(MPI_Comm* comm)
{
  ++calls.communicators_freed;
  return PMPI_Comm_free(comm);
}

int MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window)
{
  ++calls.windows_made;
  return PMPI_Win_allocate_shared(size, unit, info, comm, base, window);
}

int MPI_Win_free(MPI_Win* window)
{
  ++calls.windows_freed;
  return PMPI_Win_free(window);
}

int MPI_Op_create(MPI_User_function* function, int commutes, MPI_Op* operation)
{
  ++calls.operations_made;
  return PMPI_Op_create(function, commutes, operation);
}

int MPI_Op_free(MPI_Op* operation)
{
  ++calls.operations_freed;
  return PMPI_Op_free(operation);
}

}  // extern "C"

namespace {

/// Each collective once, on n elements of type T.
template <class T>
void call_all(Group& group, std::int64_t n)
{
  Guarded<T> values(n, group.rank());
  broadcast(values.tensor(), group.ranks() - 1, group);
  reduce_sum(values.tensor(), 0, group);
  reduce_scatter_sum(values.tensor(), group);
  all_gather(values.tensor(), group);
  all_reduce_sum(values.tensor(), group);
  barrier(group);
}

}  // namespace

TEST_CASE("TrafficLedger: bytes and messages are those that MPI is given, by every algorithm")
{
  for (const auto& [name, algorithm] : algorithms()) {
    GroupForTest test(algorithm, algorithm == Algorithm::hierarchical && world().ranks() == 4 ? 2 : 0);
    const Traffic before = calls.sent;
    call_all<float>(test.group, 70001);
    call_all<bf16>(test.group, 7);
    Traffic left = test.traffic.total();
    if (algorithm == Algorithm::library) left = {};  // its messages are its own
    INFO(name);
    REQUIRE(calls.sent.messages - before.messages == left.messages);
    REQUIRE(calls.sent.bytes - before.bytes == left.bytes);
    if (world().ranks() > 1 && algorithm == Algorithm::ring) REQUIRE(left.bytes > 0);
  }
}

TEST_CASE("messages: no request, communicator, window or operation of MPI is left behind")
{
  calls = {};
  for (const auto& [name, algorithm] : algorithms()) {
    GroupForTest test(algorithm);
    call_all<bf16>(test.group, 1001);
    const Buffer reduced(test.group.often_reduced(), Category::gradients, DType::f32, {1001}, "gradients");
    all_reduce_sum(reduced.tensor(), test.group);
    Mesh mesh(world(), {{"dp", world().ranks()}, {"tp", 1}}, test.setup);
    call_all<float>(mesh.group("dp"), 3);
  }
  REQUIRE(calls.communicators_made > 0);
  REQUIRE(calls.communicators_made == calls.communicators_freed);
  REQUIRE(calls.windows_made > 0);
  REQUIRE(calls.windows_made == calls.windows_freed);
  REQUIRE(calls.operations_made > 0);
  REQUIRE(calls.operations_made == calls.operations_freed);
  REQUIRE(calls.requests_started == calls.requests_finished);
}
