#include "common/messages/layers/comparing_transport.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace {

/// The call of one rank, as sent in a message.
struct Call {
  std::array<char, 24> name{};
  std::array<char, 16> algorithm{};
  std::int64_t count = 0;
  std::int32_t root = 0;
  std::int32_t type = 0;

  friend auto operator<=>(const Call&, const Call&) = default;
};

Call as_call(const Collective& collective)
{
  Call call{.count = collective.count, .root = collective.root, .type = static_cast<std::int32_t>(collective.type)};
  collective.name.copy(call.name.data(), call.name.size() - 1);
  collective.algorithm.copy(call.algorithm.data(), call.algorithm.size() - 1);
  return call;
}

std::string text_of(const Call& call)
{
  return fmt::format("{} ({}) of {} elements of type {}, root {}", call.name.data(), call.algorithm.data(),
                     group_digits(call.count), name_of(static_cast<DType>(call.type)), call.root);
}

/// Throws UserError on all ranks if a rank sends another number of elements than its receiver expects.
void compare_counts(const Collective& collective, const Communicator& communicator)
{
  const auto N = collective.sent.size();
  std::vector<std::int64_t> own(collective.sent.begin(), collective.sent.end()), all(2 * N * N);
  own.insert(own.end(), collective.received.begin(), collective.received.end());
  check_mpi(MPI_Allgather(own.data(), static_cast<int>(2 * N), MPI_INT64_T, all.data(), static_cast<int>(2 * N),
                          MPI_INT64_T, communicator.handle()),
            "comparing what ranks send to each other");
  std::string who;
  for (std::size_t q = 0; q < N; ++q)
    for (std::size_t r = 0; r < N; ++r)
      if (const std::int64_t sent = all[2 * N * q + r], expected = all[2 * N * r + N + q]; sent != expected)
        who += fmt::format("rank {} sends {} elements to rank {}, which expects {}\n", q, group_digits(sent), r,
                           group_digits(expected));
  if (!who.empty())
    throw UserError(fmt::format("the counts of an all-to-all do not fit at {}.", text_of(collective.where)),
                    who + "Each rank has to expect what the other sends: exchange the counts first.");
}

}  // namespace

ComparingTransport::ComparingTransport(Transport& inner, const Communicator& communicator)
    : TransportLayer(inner), communicator_(communicator.duplicate())
{
}

void ComparingTransport::enter(const Collective& collective)
{
  const std::vector<Call> calls =
      gather_all(as_call(collective), communicator_.handle(), "comparing what ranks call");
  std::map<Call, std::vector<int>> ranks_by_call;
  for (std::size_t r = 0; r < calls.size(); ++r) ranks_by_call[calls[r]].push_back(static_cast<int>(r));
  if (ranks_by_call.size() > 1) {
    std::string who;
    for (const auto& [call, who_calls] : ranks_by_call)
      who += fmt::format("rank {}: {}\n", fmt::join(who_calls, ", "), text_of(call));
    throw UserError(
        fmt::format("the ranks do not call the same collective at {}.", text_of(collective.where)),
        who + "All ranks have to call it with the same count, type and root: give each the same options.");
  }
  if (!collective.sent.empty()) compare_counts(collective, communicator_);
  TransportLayer::enter(collective);
}

}  // namespace rankwise
