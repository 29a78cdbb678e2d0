// MPI's collective calls. Each rank gives its data to the judge and gets the data of all.

#include <algorithm>
#include <cstring>

#include "tests/judge/mpi/handles.hpp"

using namespace judge;

namespace {

using Bytes = std::vector<std::byte>;
using All = std::vector<Bytes>;  // by rank

/// A collective call that waits; returns the data of all.
All meet(MPI_Comm comm, const char* call, std::span<const std::byte> own)
{
  All all;
  Request* request = connection().meet(of(comm), call, own, [&all](const All& data) { all = data; });
  connection().wait([request] { return request->done; }, request->what);
  delete request;
  return all;
}

void put(std::span<std::byte> to, std::span<const std::byte> from, const char* call)
{
  if (from.size() > to.size())
    connection().abort(1, std::string(call) + ": a rank sends " + std::to_string(from.size()) + " bytes to " +
                              std::to_string(to.size()) + " bytes of memory");
  std::copy(from.begin(), from.end(), to.begin());
}

std::size_t index(int i)
{
  return static_cast<std::size_t>(i);
}

/// The element-wise reduction of what all gave.
Bytes reduced(const All& all, MPI_Datatype type, MPI_Op op)
{
  Bytes sum = all.front();
  for (std::size_t i = 1; i < all.size(); ++i) reduce(sum, all[i], type, op);
  return sum;
}

/// What a rank gives: its receive buffer where it gives MPI_IN_PLACE.
const void* given(const void* sent, const void* received)
{
  return sent == MPI_IN_PLACE ? received : sent;
}

std::byte* place(void* data, std::int64_t element, MPI_Datatype type)
{
  return static_cast<std::byte*>(data) + element * static_cast<std::int64_t>(size_of(type));
}

/// Puts rank r's data where counts and places say.
void put_all(const All& all, void* data, const int* counts, const int* places, MPI_Datatype type, const char* call)
{
  for (std::size_t r = 0; r < all.size(); ++r)
    put(elements(place(data, places[r], type), counts[r], type), all[r], call);
}

/// counts and places of equal parts.
struct EqualParts {
  EqualParts(std::size_t ranks, int count) : counts(ranks, count), places(ranks)
  {
    for (std::size_t r = 0; r < ranks; ++r) places[r] = static_cast<int>(r) * count;
  }
  std::vector<int> counts, places;
};

/// Parts of a vector, the length of each before it.
Bytes parts_of(const void* data, const int* counts, const int* places, MPI_Datatype type, std::size_t ranks)
{
  Bytes parts;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto values = elements(place(const_cast<void*>(data), places[r], type), counts[r], type);
    const std::uint64_t bytes = values.size();
    const auto length = std::as_bytes(std::span(&bytes, 1));
    parts.insert(parts.end(), length.begin(), length.end());
    parts.insert(parts.end(), values.begin(), values.end());
  }
  return parts;
}

/// The part for a rank of what parts_of() returned.
std::span<const std::byte> part(const Bytes& parts, int rank)
{
  std::size_t at = 0;
  std::uint64_t bytes = 0;
  for (int r = 0; r <= rank; ++r) {
    at += r == 0 ? 0 : bytes;
    std::memcpy(&bytes, &parts.at(at), sizeof bytes);
    at += sizeof bytes;
  }
  return std::span(parts).subspan(at, bytes);
}

}  // namespace

RANKWISE_CALL(Barrier, MPI_Comm comm)
{
  meet(comm, "MPI_Barrier", {});
  return MPI_SUCCESS;
}

RANKWISE_CALL(Ibarrier, MPI_Comm comm, MPI_Request* request)
{
  *request = handle_of<MPI_Request>(connection().meet(of(comm), "MPI_Ibarrier", {}, [](const All&) {}));
  return MPI_SUCCESS;
}

RANKWISE_CALL(Bcast, void* data, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
  const auto values = elements(data, count, type);
  const bool mine = of(comm).rank == root;
  const All all = meet(comm, "MPI_Bcast", mine ? std::span<const std::byte>(values) : std::span<const std::byte>{});
  if (!mine) put(values, all.at(index(root)), "MPI_Bcast");
  return MPI_SUCCESS;
}

RANKWISE_CALL(Allreduce, const void* sent, void* received, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
  const All all = meet(comm, "MPI_Allreduce", elements(given(sent, received), count, type));
  put(elements(received, count, type), reduced(all, type, op), "MPI_Allreduce");
  return MPI_SUCCESS;
}

RANKWISE_CALL(Iallreduce, const void* sent, void* received, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
              MPI_Request* request)
{
  const auto finish = [=](const All& all) {
    put(elements(received, count, type), reduced(all, type, op), "MPI_Iallreduce");
  };
  *request = handle_of<MPI_Request>(
      connection().meet(of(comm), "MPI_Iallreduce", elements(given(sent, received), count, type), finish));
  return MPI_SUCCESS;
}

RANKWISE_CALL(Reduce, const void* sent, void* received, int count, MPI_Datatype type, MPI_Op op, int root,
              MPI_Comm comm)
{
  const All all = meet(comm, "MPI_Reduce", elements(given(sent, received), count, type));
  if (of(comm).rank == root) put(elements(received, count, type), reduced(all, type, op), "MPI_Reduce");
  return MPI_SUCCESS;
}

RANKWISE_CALL(Reduce_scatter, const void* sent, void* received, const int counts[], MPI_Datatype type, MPI_Op op,
              MPI_Comm comm)
{
  const std::size_t ranks = of(comm).members.size();
  int total = 0, first = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (static_cast<int>(r) < of(comm).rank) first += counts[r];
    total += counts[r];
  }
  const All all = meet(comm, "MPI_Reduce_scatter", elements(given(sent, received), total, type));
  Bytes sum = reduced(all, type, op);
  const int own = counts[of(comm).rank];
  put(elements(received, own, type), elements(place(sum.data(), first, type), own, type), "MPI_Reduce_scatter");
  return MPI_SUCCESS;
}

RANKWISE_CALL(Reduce_scatter_block, const void* sent, void* received, int count, MPI_Datatype type, MPI_Op op,
              MPI_Comm comm)
{
  const EqualParts parts(of(comm).members.size(), count);
  return PMPI_Reduce_scatter(sent, received, parts.counts.data(), type, op, comm);
}

RANKWISE_CALL(Allgatherv, const void* sent, int count, MPI_Datatype sent_type, void* received, const int counts[],
              const int places[], MPI_Datatype type, MPI_Comm comm)
{
  const int r = of(comm).rank;
  const auto own = sent == MPI_IN_PLACE ? elements(place(received, places[r], type), counts[r], type)
                                        : elements(const_cast<void*>(sent), count, sent_type);
  put_all(meet(comm, "MPI_Allgather", own), received, counts, places, type, "MPI_Allgather");
  return MPI_SUCCESS;
}

RANKWISE_CALL(Allgather, const void* sent, int count, MPI_Datatype sent_type, void* received, int received_count,
              MPI_Datatype type, MPI_Comm comm)
{
  const EqualParts parts(of(comm).members.size(), received_count);
  return PMPI_Allgatherv(sent, count, sent_type, received, parts.counts.data(), parts.places.data(), type, comm);
}

RANKWISE_CALL(Gatherv, const void* sent, int count, MPI_Datatype sent_type, void* received, const int counts[],
              const int places[], MPI_Datatype type, int root, MPI_Comm comm)
{
  const int r = of(comm).rank;
  const auto own = sent == MPI_IN_PLACE ? elements(place(received, places[r], type), counts[r], type)
                                        : elements(const_cast<void*>(sent), count, sent_type);
  const All all = meet(comm, "MPI_Gather", own);
  if (r == root) put_all(all, received, counts, places, type, "MPI_Gather");
  return MPI_SUCCESS;
}

RANKWISE_CALL(Gather, const void* sent, int count, MPI_Datatype sent_type, void* received, int received_count,
              MPI_Datatype type, int root, MPI_Comm comm)
{
  const EqualParts parts(of(comm).members.size(), received_count);
  return PMPI_Gatherv(sent, count, sent_type, received, parts.counts.data(), parts.places.data(), type, root, comm);
}

RANKWISE_CALL(Scatterv, const void* sent, const int counts[], const int places[], MPI_Datatype sent_type,
              void* received, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
  const bool mine = of(comm).rank == root;
  const Bytes own = mine ? parts_of(sent, counts, places, sent_type, of(comm).members.size()) : Bytes();
  const Bytes all = meet(comm, "MPI_Scatter", own).at(index(root));
  if (received != MPI_IN_PLACE) put(elements(received, count, type), part(all, of(comm).rank), "MPI_Scatter");
  return MPI_SUCCESS;
}

RANKWISE_CALL(Scatter, const void* sent, int count, MPI_Datatype sent_type, void* received, int received_count,
              MPI_Datatype type, int root, MPI_Comm comm)
{
  const EqualParts parts(of(comm).members.size(), count);
  return PMPI_Scatterv(sent, parts.counts.data(), parts.places.data(), sent_type, received, received_count, type,
                       root, comm);
}

RANKWISE_CALL(Alltoallv, const void* sent, const int sent_counts[], const int sent_places[], MPI_Datatype sent_type,
              void* received, const int counts[], const int places[], MPI_Datatype type, MPI_Comm comm)
{
  const bool in_place = sent == MPI_IN_PLACE;
  const Bytes own = in_place ? parts_of(received, counts, places, type, of(comm).members.size())
                             : parts_of(sent, sent_counts, sent_places, sent_type, of(comm).members.size());
  const All all = meet(comm, "MPI_Alltoall", own);
  for (std::size_t r = 0; r < all.size(); ++r)
    put(elements(place(received, places[r], type), counts[r], type), part(all[r], of(comm).rank), "MPI_Alltoall");
  return MPI_SUCCESS;
}

RANKWISE_CALL(Alltoall, const void* sent, int count, MPI_Datatype sent_type, void* received, int received_count,
              MPI_Datatype type, MPI_Comm comm)
{
  const EqualParts out(of(comm).members.size(), count), in(of(comm).members.size(), received_count);
  return PMPI_Alltoallv(sent, out.counts.data(), out.places.data(), sent_type, received, in.counts.data(),
                        in.places.data(), type, comm);
}
