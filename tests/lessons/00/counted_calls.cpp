#include "tests/lessons/00/counted_calls.hpp"

#include <chrono>
#include <numeric>
#include <thread>

#include "common/program/session.hpp"

namespace rankwise {

namespace {

CountedCalls* counted = nullptr;  // what counts now

/// Notes a message that is about to be sent, after the delay.
void note_send(int to, int n, MPI_Datatype type)
{
  if (counted == nullptr || to == MPI_PROC_NULL) return;
  std::this_thread::sleep_for(std::chrono::duration<double>(counted->delay_s));
  int size = 0;
  check_mpi(PMPI_Type_size(type, &size), "asking for the size of a type");
  counted->sent.push_back({to, std::int64_t{n} * size});
}

/// Notes a message that is about to be received.
void note_receive(int from)
{
  if (counted != nullptr && from != MPI_PROC_NULL) ++counted->received;
}

/// Notes a call that the code under test must not make.
void note_forbidden(const char* name)
{
  if (counted != nullptr) counted->forbidden.emplace_back(name);
}

}  // namespace

CountedCalls::CountedCalls()
{
  counted = this;
}

CountedCalls::~CountedCalls()
{
  counted = nullptr;
}

std::int64_t CountedCalls::sent_bytes() const
{
  return std::accumulate(sent.begin(), sent.end(), std::int64_t{0},
                         [](std::int64_t sum, const SentMessage& message) { return sum + message.bytes; });
}

bool all_received(const CountedCalls& calls, MPI_Comm comm)
{
  std::int64_t in_flight = std::ssize(calls.sent) - calls.received;
  check_mpi(PMPI_Allreduce(MPI_IN_PLACE, &in_flight, 1, MPI_INT64_T, MPI_SUM, comm), "counting messages in flight");
  int found = 0;
  check_mpi(PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, MPI_STATUS_IGNORE), "looking for messages");
  check_mpi(PMPI_Allreduce(MPI_IN_PLACE, &found, 1, MPI_INT, MPI_LOR, comm), "looking for messages");
  return in_flight == 0 && found == 0;
}

}  // namespace rankwise

using namespace rankwise;

extern "C" {

// ---- Messages --------------------------------------------------------------------------------------------------------

int MPI_Send(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
  note_send(to, n, type);
  return counted == nullptr ? PMPI_Send(data, n, type, to, tag, comm) : PMPI_Ssend(data, n, type, to, tag, comm);
}

int MPI_Ssend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
  note_send(to, n, type);
  return PMPI_Ssend(data, n, type, to, tag, comm);
}

int MPI_Rsend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
  note_send(to, n, type);
  return PMPI_Rsend(data, n, type, to, tag, comm);
}

int MPI_Bsend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
  note_send(to, n, type);
  return PMPI_Bsend(data, n, type, to, tag, comm);
}

int MPI_Isend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request)
{
  note_send(to, n, type);
  return counted == nullptr ? PMPI_Isend(data, n, type, to, tag, comm, request)
                            : PMPI_Issend(data, n, type, to, tag, comm, request);
}

int MPI_Issend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request)
{
  note_send(to, n, type);
  return PMPI_Issend(data, n, type, to, tag, comm, request);
}

int MPI_Irsend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request)
{
  note_send(to, n, type);
  return PMPI_Irsend(data, n, type, to, tag, comm, request);
}

int MPI_Ibsend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request)
{
  note_send(to, n, type);
  return PMPI_Ibsend(data, n, type, to, tag, comm, request);
}

int MPI_Recv(void* data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status)
{
  note_receive(from);
  return PMPI_Recv(data, n, type, from, tag, comm, status);
}

int MPI_Irecv(void* data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request)
{
  note_receive(from);
  return PMPI_Irecv(data, n, type, from, tag, comm, request);
}

int MPI_Mrecv(void* data, int n, MPI_Datatype type, MPI_Message* message, MPI_Status* status)
{
  note_receive(0);
  return PMPI_Mrecv(data, n, type, message, status);
}

int MPI_Imrecv(void* data, int n, MPI_Datatype type, MPI_Message* message, MPI_Request* request)
{
  note_receive(0);
  return PMPI_Imrecv(data, n, type, message, request);
}

int MPI_Sendrecv(const void* data, int n, MPI_Datatype type, int to, int tag, void* into, int most,
                 MPI_Datatype into_type, int from, int into_tag, MPI_Comm comm, MPI_Status* status)
{
  note_send(to, n, type);
  note_receive(from);
  return PMPI_Sendrecv(data, n, type, to, tag, into, most, into_type, from, into_tag, comm, status);
}

int MPI_Sendrecv_replace(void* data, int n, MPI_Datatype type, int to, int tag, int from, int into_tag,
                         MPI_Comm comm, MPI_Status* status)
{
  note_send(to, n, type);
  note_receive(from);
  return PMPI_Sendrecv_replace(data, n, type, to, tag, from, into_tag, comm, status);
}

// ---- Calls that do what is to be written -----------------------------------------------------------------------------

int MPI_Bcast(void* data, int n, MPI_Datatype type, int root, MPI_Comm comm)
{
  note_forbidden("MPI_Bcast");
  return PMPI_Bcast(data, n, type, root, comm);
}

int MPI_Ibcast(void* data, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Ibcast");
  return PMPI_Ibcast(data, n, type, root, comm, request);
}

int MPI_Reduce(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm)
{
  note_forbidden("MPI_Reduce");
  return PMPI_Reduce(data, into, n, type, op, root, comm);
}

int MPI_Ireduce(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                MPI_Request* request)
{
  note_forbidden("MPI_Ireduce");
  return PMPI_Ireduce(data, into, n, type, op, root, comm, request);
}

int MPI_Allreduce(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
  note_forbidden("MPI_Allreduce");
  return PMPI_Allreduce(data, into, n, type, op, comm);
}

int MPI_Iallreduce(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request)
{
  note_forbidden("MPI_Iallreduce");
  return PMPI_Iallreduce(data, into, n, type, op, comm, request);
}

int MPI_Scan(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
  note_forbidden("MPI_Scan");
  return PMPI_Scan(data, into, n, type, op, comm);
}

int MPI_Exscan(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
  note_forbidden("MPI_Exscan");
  return PMPI_Exscan(data, into, n, type, op, comm);
}

int MPI_Reduce_scatter(const void* data, void* into, const int* counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
  note_forbidden("MPI_Reduce_scatter");
  return PMPI_Reduce_scatter(data, into, counts, type, op, comm);
}

int MPI_Ireduce_scatter(const void* data, void* into, const int* counts, MPI_Datatype type, MPI_Op op,
                        MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Ireduce_scatter");
  return PMPI_Ireduce_scatter(data, into, counts, type, op, comm, request);
}

int MPI_Reduce_scatter_block(const void* data, void* into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
  note_forbidden("MPI_Reduce_scatter_block");
  return PMPI_Reduce_scatter_block(data, into, n, type, op, comm);
}

int MPI_Gather(const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type, int root,
               MPI_Comm comm)
{
  note_forbidden("MPI_Gather");
  return PMPI_Gather(data, n, type, into, most, into_type, root, comm);
}

int MPI_Igather(const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type, int root,
                MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Igather");
  return PMPI_Igather(data, n, type, into, most, into_type, root, comm, request);
}

int MPI_Scatter(const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type, int root,
                MPI_Comm comm)
{
  note_forbidden("MPI_Scatter");
  return PMPI_Scatter(data, n, type, into, most, into_type, root, comm);
}

int MPI_Iscatter(const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type, int root,
                 MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Iscatter");
  return PMPI_Iscatter(data, n, type, into, most, into_type, root, comm, request);
}

int MPI_Gatherv(const void* data, int n, MPI_Datatype type, void* into, const int* counts, const int* places,
                MPI_Datatype into_type, int root, MPI_Comm comm)
{
  note_forbidden("MPI_Gatherv");
  return PMPI_Gatherv(data, n, type, into, counts, places, into_type, root, comm);
}

int MPI_Igatherv(const void* data, int n, MPI_Datatype type, void* into, const int* counts, const int* places,
                 MPI_Datatype into_type, int root, MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Igatherv");
  return PMPI_Igatherv(data, n, type, into, counts, places, into_type, root, comm, request);
}

int MPI_Scatterv(const void* data, const int* counts, const int* places, MPI_Datatype type, void* into, int n,
                 MPI_Datatype into_type, int root, MPI_Comm comm)
{
  note_forbidden("MPI_Scatterv");
  return PMPI_Scatterv(data, counts, places, type, into, n, into_type, root, comm);
}

int MPI_Iscatterv(const void* data, const int* counts, const int* places, MPI_Datatype type, void* into, int n,
                  MPI_Datatype into_type, int root, MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Iscatterv");
  return PMPI_Iscatterv(data, counts, places, type, into, n, into_type, root, comm, request);
}

int MPI_Allgather(const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type,
                  MPI_Comm comm)
{
  note_forbidden("MPI_Allgather");
  return PMPI_Allgather(data, n, type, into, most, into_type, comm);
}

int MPI_Iallgather(const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type,
                   MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Iallgather");
  return PMPI_Iallgather(data, n, type, into, most, into_type, comm, request);
}

int MPI_Allgatherv(const void* data, int n, MPI_Datatype type, void* into, const int* counts, const int* places,
                   MPI_Datatype into_type, MPI_Comm comm)
{
  note_forbidden("MPI_Allgatherv");
  return PMPI_Allgatherv(data, n, type, into, counts, places, into_type, comm);
}

int MPI_Iallgatherv(const void* data, int n, MPI_Datatype type, void* into, const int* counts, const int* places,
                    MPI_Datatype into_type, MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Iallgatherv");
  return PMPI_Iallgatherv(data, n, type, into, counts, places, into_type, comm, request);
}

int MPI_Alltoall(const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type,
                 MPI_Comm comm)
{
  note_forbidden("MPI_Alltoall");
  return PMPI_Alltoall(data, n, type, into, most, into_type, comm);
}

int MPI_Ialltoall(const void* data, int n, MPI_Datatype type, void* into, int most, MPI_Datatype into_type,
                  MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Ialltoall");
  return PMPI_Ialltoall(data, n, type, into, most, into_type, comm, request);
}

int MPI_Alltoallv(const void* data, const int* counts, const int* places, MPI_Datatype type, void* into,
                  const int* into_counts, const int* into_places, MPI_Datatype into_type, MPI_Comm comm)
{
  note_forbidden("MPI_Alltoallv");
  return PMPI_Alltoallv(data, counts, places, type, into, into_counts, into_places, into_type, comm);
}

int MPI_Win_create(void* data, MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, MPI_Win* window)
{
  note_forbidden("MPI_Win_create");
  return PMPI_Win_create(data, size, unit, info, comm, window);
}

int MPI_Win_allocate(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* data, MPI_Win* window)
{
  note_forbidden("MPI_Win_allocate");
  return PMPI_Win_allocate(size, unit, info, comm, data, window);
}

int MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* data, MPI_Win* window)
{
  note_forbidden("MPI_Win_allocate_shared");
  return PMPI_Win_allocate_shared(size, unit, info, comm, data, window);
}

int MPI_Send_init(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Send_init");
  return PMPI_Send_init(data, n, type, to, tag, comm, request);
}

int MPI_Recv_init(void* data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request)
{
  note_forbidden("MPI_Recv_init");
  return PMPI_Recv_init(data, n, type, from, tag, comm, request);
}

}  // extern "C"
