#include "common/messages/watchdog/mpi_calls.hpp"

#include <algorithm>
#include <mpi.h>
#include <span>
#include <string_view>

#include "common/base/activity.hpp"
#include "common/messages/watchdog/flight_recorder.hpp"
#include "common/messages/watchdog/mpi_waits.hpp"

namespace rankwise {

namespace {

thread_local int own_calls = 0;  // number of open OwnMpiCalls scopes

/// One call of MPI.
struct Call {
  std::string_view name;
  const void* where;  // return address
  int peer = -1;      // its rank in the job
  std::int64_t bytes = 0;
};

std::int64_t bytes_of(int count, MPI_Datatype type)
{
  int size = 0;
  return PMPI_Type_size(type, &size) == MPI_SUCCESS ? std::int64_t{count} * size : 0;
}

/// Rank in the job of a rank of a communicator; -1 if there is none, as for MPI_ANY_SOURCE or an invalid rank.
int rank_in_job(int rank, MPI_Comm comm)
{
  int ranks = 0;
  if (rank < 0 || comm == MPI_COMM_NULL || PMPI_Comm_size(comm, &ranks) != MPI_SUCCESS || rank >= ranks) return -1;
  if (comm == MPI_COMM_WORLD) return rank;
  MPI_Group group = MPI_GROUP_NULL, job = MPI_GROUP_NULL;
  int in_job = -1;
  if (PMPI_Comm_group(comm, &group) != MPI_SUCCESS) return -1;
  if (PMPI_Comm_group(job_ranks(), &job) == MPI_SUCCESS) {
    if (PMPI_Group_translate_ranks(group, 1, &rank, job, &in_job) != MPI_SUCCESS || in_job < 0) in_job = -1;
    PMPI_Group_free(&job);
  }
  PMPI_Group_free(&group);
  return in_job;
}

/// Performs a call that may wait for other ranks.
/// @return  MPI's error code.
template <class Function>
int wait_in(const Call& call, const Function& function)
{
  if (own_calls > 0) return function();
  const std::int64_t number = flight_recorder().mpi_call_began(call.name, call.peer, call.bytes, call.where);
  const int code = function();
  flight_recorder().mpi_call_ended(number);
  return code;
}

/// Counts a message to or from a rank of a communicator.
void count(bool sends, int peer, MPI_Comm comm, int code = MPI_SUCCESS)
{
  if (own_calls > 0 || code != MPI_SUCCESS || peer == MPI_PROC_NULL) return;
  const int in_job = rank_in_job(peer, comm);
  if (in_job < 0)
    flight_recorder().do_not_count_mpi_messages();
  else
    flight_recorder().count_mpi_message(sends, in_job);
}

/// Performs a call that receives a message from a rank of a communicator, and counts the message.
/// @param function  gets the status to fill in.
template <class Function>
int receive(const Call& call, int from, MPI_Comm comm, MPI_Status* status, const Function& function)
{
  MPI_Status own;
  MPI_Status* const arrived = status == MPI_STATUS_IGNORE ? &own : status;
  const int code = wait_in(call, [&] { return function(arrived); });
  count(false, from == MPI_PROC_NULL ? from : arrived->MPI_SOURCE, comm, code);
  return code;
}

/// Performs a call whose messages cannot be counted.
template <class Function>
int uncounted(const Function& function)
{
  if (own_calls == 0) flight_recorder().do_not_count_mpi_messages();
  return function();
}

/// Performs a call that tests requests for completion; @p done returns how many are complete.
template <class Function>
int ask(std::span<const MPI_Request> requests, const int* done, const Function& function)
{
  const auto under_way = [](MPI_Request request) { return request != MPI_REQUEST_NULL; };
  const bool any = std::any_of(requests.begin(), requests.end(),
                               under_way);  // otherwise all are complete, and repeated tests are no progress
  const int code = function();
  if (own_calls == 0 && any && *done > 0) note_progress();
  return code;
}

/// The requests passed to a call.
std::span<const MPI_Request> requests_of(int n, const MPI_Request* requests)
{
  return {requests, static_cast<std::size_t>(std::max(n, 0))};
}

}  // namespace

OwnMpiCalls::OwnMpiCalls()
{
  ++own_calls;
}

OwnMpiCalls::~OwnMpiCalls()
{
  --own_calls;
}

}  // namespace rankwise

// Weak, so that a program can define its own.
extern "C" {

using namespace rankwise;

/// Defines a function of MPI that waits for other ranks and has nothing else to record.
#define RANKWISE_WAITS_IN(function, parameters, arguments)                                           \
  [[gnu::weak]] int function parameters                                                              \
  {                                                                                                  \
    return wait_in({#function, __builtin_return_address(0)}, [&] { return P##function arguments; }); \
  }

[[gnu::weak]] int MPI_Send(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
  count(true, to, comm);
  return wait_in({"MPI_Send", __builtin_return_address(0), rank_in_job(to, comm), bytes_of(n, type)}, [&] {
    return call_with_pauses(
        [&] { return PMPI_Send(data, n, type, to, tag, comm); },
        [&](MPI_Request* request) { return PMPI_Isend(data, n, type, to, tag, comm, request); });
  });
}

[[gnu::weak]] int MPI_Ssend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
  count(true, to, comm);
  return wait_in({"MPI_Ssend", __builtin_return_address(0), rank_in_job(to, comm), bytes_of(n, type)}, [&] {
    return call_with_pauses(
        [&] { return PMPI_Ssend(data, n, type, to, tag, comm); },
        [&](MPI_Request* request) { return PMPI_Issend(data, n, type, to, tag, comm, request); });
  });
}

[[gnu::weak]] int MPI_Isend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                            MPI_Request* request)
{
  count(true, to, comm);
  return PMPI_Isend(data, n, type, to, tag, comm, request);
}

[[gnu::weak]] int MPI_Issend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                             MPI_Request* request)
{
  count(true, to, comm);
  return PMPI_Issend(data, n, type, to, tag, comm, request);
}

[[gnu::weak]] int MPI_Recv(void* data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                           MPI_Status* status)
{
  const Call call{"MPI_Recv", __builtin_return_address(0), rank_in_job(from, comm), bytes_of(n, type)};
  return receive(call, from, comm, status, [&](MPI_Status* arrived) {
    return call_with_pauses(
        [&] { return PMPI_Recv(data, n, type, from, tag, comm, arrived); },
        [&](MPI_Request* request) { return PMPI_Irecv(data, n, type, from, tag, comm, request); }, arrived);
  });
}

[[gnu::weak]] int MPI_Irecv(void* data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                            MPI_Request* request)
{
  count(false, from, comm);
  return PMPI_Irecv(data, n, type, from, tag, comm, request);
}

[[gnu::weak]] int MPI_Sendrecv(const void* data, int n, MPI_Datatype type, int to, int tag, void* into, int most,
                               MPI_Datatype into_type, int from, int into_tag, MPI_Comm comm, MPI_Status* status)
{
  count(true, to, comm);
  const Call call{"MPI_Sendrecv", __builtin_return_address(0), rank_in_job(from, comm), bytes_of(most, into_type)};
  return receive(call, from, comm, status, [&](MPI_Status* arrived) {
    return PMPI_Sendrecv(data, n, type, to, tag, into, most, into_type, from, into_tag, comm, arrived);
  });
}

[[gnu::weak]] int MPI_Sendrecv_replace(void* data, int n, MPI_Datatype type, int to, int tag, int from,
                                       int into_tag, MPI_Comm comm, MPI_Status* status)
{
  count(true, to, comm);
  const Call call{"MPI_Sendrecv_replace", __builtin_return_address(0), rank_in_job(from, comm), bytes_of(n, type)};
  return receive(call, from, comm, status, [&](MPI_Status* arrived) {
    return PMPI_Sendrecv_replace(data, n, type, to, tag, from, into_tag, comm, arrived);
  });
}

[[gnu::weak]] int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status* status)
{
  return wait_in({"MPI_Probe", __builtin_return_address(0), rank_in_job(from, comm)},
                 [&] { return PMPI_Probe(from, tag, comm, status); });
}

[[gnu::weak]] int MPI_Mprobe(int from, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status)
{
  return uncounted([&] {
    return wait_in({"MPI_Mprobe", __builtin_return_address(0), rank_in_job(from, comm)},
                   [&] { return PMPI_Mprobe(from, tag, comm, message, status); });
  });
}

[[gnu::weak]] int MPI_Improbe(int from, int tag, MPI_Comm comm, int* found, MPI_Message* message,
                              MPI_Status* status)
{
  return uncounted([&] { return PMPI_Improbe(from, tag, comm, found, message, status); });
}

[[gnu::weak]] int MPI_Recv_init(void* data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                                MPI_Request* request)
{
  return uncounted([&] { return PMPI_Recv_init(data, n, type, from, tag, comm, request); });
}

[[gnu::weak]] int MPI_Cancel(MPI_Request* request)
{
  return uncounted([&] { return PMPI_Cancel(request); });
}

[[gnu::weak]] int MPI_Wait(MPI_Request* request, MPI_Status* status)
{
  return wait_in({"MPI_Wait", __builtin_return_address(0)}, [&] {
    return wait_with_pauses([&] { return PMPI_Wait(request, status); },
                            [&](int* done) { return PMPI_Test(request, done, status); });
  });
}

[[gnu::weak]] int MPI_Waitall(int n, MPI_Request* requests, MPI_Status* statuses)
{
  return wait_in({"MPI_Waitall", __builtin_return_address(0)}, [&] {
    return wait_with_pauses([&] { return PMPI_Waitall(n, requests, statuses); },
                            [&](int* done) { return PMPI_Testall(n, requests, done, statuses); });
  });
}

RANKWISE_WAITS_IN(MPI_Waitany, (int n, MPI_Request* requests, int* which, MPI_Status* status),
                  (n, requests, which, status))

RANKWISE_WAITS_IN(MPI_Waitsome, (int n, MPI_Request* requests, int* done, int* which, MPI_Status* statuses),
                  (n, requests, done, which, statuses))

[[gnu::weak]] int MPI_Test(MPI_Request* request, int* done, MPI_Status* status)
{
  return ask({request, 1}, done, [&] { return PMPI_Test(request, done, status); });
}

[[gnu::weak]] int MPI_Testall(int n, MPI_Request* requests, int* done, MPI_Status* statuses)
{
  return ask(requests_of(n, requests), done, [&] { return PMPI_Testall(n, requests, done, statuses); });
}

[[gnu::weak]] int MPI_Testany(int n, MPI_Request* requests, int* which, int* done, MPI_Status* status)
{
  return ask(requests_of(n, requests), done, [&] { return PMPI_Testany(n, requests, which, done, status); });
}

[[gnu::weak]] int MPI_Testsome(int n, MPI_Request* requests, int* done, int* which, MPI_Status* statuses)
{
  return ask(requests_of(n, requests), done, [&] { return PMPI_Testsome(n, requests, done, which, statuses); });
}

[[gnu::weak]] int MPI_Barrier(MPI_Comm comm)
{
  return wait_in({"MPI_Barrier", __builtin_return_address(0)}, [&] {
    return call_with_pauses([&] { return PMPI_Barrier(comm); },
                            [&](MPI_Request* request) { return PMPI_Ibarrier(comm, request); });
  });
}

[[gnu::weak]] int MPI_Bcast(void* data, int n, MPI_Datatype type, int root, MPI_Comm comm)
{
  return wait_in({"MPI_Bcast", __builtin_return_address(0), -1, bytes_of(n, type)}, [&] {
    return call_with_pauses([&] { return PMPI_Bcast(data, n, type, root, comm); },
                            [&](MPI_Request* request) { return PMPI_Ibcast(data, n, type, root, comm, request); });
  });
}

[[gnu::weak]] int MPI_Reduce(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op, int root,
                             MPI_Comm comm)
{
  return wait_in({"MPI_Reduce", __builtin_return_address(0), -1, bytes_of(n, type)},
                 [&] { return PMPI_Reduce(data, into, n, type, op, root, comm); });
}

[[gnu::weak]] int MPI_Allreduce(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
  return wait_in({"MPI_Allreduce", __builtin_return_address(0), -1, bytes_of(n, type)}, [&] {
    return call_with_pauses(
        [&] { return PMPI_Allreduce(data, into, n, type, op, comm); },
        [&](MPI_Request* request) { return PMPI_Iallreduce(data, into, n, type, op, comm, request); });
  });
}

RANKWISE_WAITS_IN(MPI_Reduce_scatter,
                  (const void* data, void* into, const int* counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
                  (data, into, counts, type, op, comm))

[[gnu::weak]] int MPI_Reduce_scatter_block(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op,
                                           MPI_Comm comm)
{
  return wait_in({"MPI_Reduce_scatter_block", __builtin_return_address(0), -1, bytes_of(n, type)},
                 [&] { return PMPI_Reduce_scatter_block(data, into, n, type, op, comm); });
}

RANKWISE_WAITS_IN(MPI_Gather,
                  (const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type,
                   int root, MPI_Comm comm),
                  (data, n, type, into, most, into_type, root, comm))

RANKWISE_WAITS_IN(MPI_Gatherv,
                  (const void* data, int n, MPI_Datatype type, void* into, const int* counts, const int* places,
                   MPI_Datatype into_type, int root, MPI_Comm comm),
                  (data, n, type, into, counts, places, into_type, root, comm))

RANKWISE_WAITS_IN(MPI_Scatter,
                  (const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type,
                   int root, MPI_Comm comm),
                  (data, n, type, into, most, into_type, root, comm))

RANKWISE_WAITS_IN(MPI_Scatterv,
                  (const void* data, const int* counts, const int* places, MPI_Datatype type, void* into, int n,
                   MPI_Datatype into_type, int root, MPI_Comm comm),
                  (data, counts, places, type, into, n, into_type, root, comm))

RANKWISE_WAITS_IN(MPI_Allgather,
                  (const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type,
                   MPI_Comm comm),
                  (data, n, type, into, most, into_type, comm))

RANKWISE_WAITS_IN(MPI_Allgatherv,
                  (const void* data, int n, MPI_Datatype type, void* into, const int* counts, const int* places,
                   MPI_Datatype into_type, MPI_Comm comm),
                  (data, n, type, into, counts, places, into_type, comm))

RANKWISE_WAITS_IN(MPI_Alltoall,
                  (const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type,
                   MPI_Comm comm),
                  (data, n, type, into, most, into_type, comm))

RANKWISE_WAITS_IN(MPI_Alltoallv,
                  (const void* data, const int* counts, const int* places, MPI_Datatype type, void* into,
                   const int* into_counts, const int* into_places, MPI_Datatype into_type, MPI_Comm comm),
                  (data, counts, places, type, into, into_counts, into_places, into_type, comm))

RANKWISE_WAITS_IN(MPI_Comm_dup, (MPI_Comm comm, MPI_Comm* copy), (comm, copy))

RANKWISE_WAITS_IN(MPI_Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm* part), (comm, color, key, part))

RANKWISE_WAITS_IN(MPI_Comm_split_type, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* part),
                  (comm, type, key, info, part))

RANKWISE_WAITS_IN(MPI_Win_allocate_shared,
                  (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window),
                  (size, unit, info, comm, base, window))

RANKWISE_WAITS_IN(MPI_Win_free, (MPI_Win * window), (window))

}  // extern "C"
