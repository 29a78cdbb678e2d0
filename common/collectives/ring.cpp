#include "common/collectives/ring.hpp"

#include <algorithm>
#include <array>

#include "common/memory/element_sum.hpp"

namespace rankwise {

namespace {

/// One message of a shard, as a range of the whole vector.
using Message = Range;

/// Splits a shard into messages of at most @p longest elements, in order; empty ranges have none.
std::vector<Message> messages_of(const Share& share, std::int64_t longest)
{
  std::vector<Message> messages;
  for (const Range& piece : share)
    for (std::int64_t first = piece.first; first < piece.end(); first += longest)
      messages.push_back({first, std::min(longest, piece.end() - first)});
  return messages;
}

/// A simultaneous send and receive of one rank; either may be empty.
struct Exchange {
  Message sent, received;
  std::size_t after = 0;  // number of exchanges finished before it starts, so that its data has arrived
};

/// All exchanges of one rank, in order: N-1 steps; in step k shard first-k is sent and shard first-k-1 is received.
std::vector<Exchange> exchanges(const std::vector<Share>& shares, std::int64_t longest, int first)
{
  const int N = static_cast<int>(shares.size());
  std::vector<std::vector<Message>> messages;
  for (const Share& share : shares) messages.push_back(messages_of(share, longest));
  const auto of = [&](int share) -> const std::vector<Message>& {
    return messages[static_cast<std::size_t>(((share % N) + N) % N)];
  };
  std::vector<Exchange> all;
  // BEGIN EXERCISE 02.1
  std::size_t step_before = 0;  // number of the first exchange of the previous step
  for (int k = 0; k + 1 < N; ++k) {
    const std::vector<Message>&out = of(first - k), &in = of(first - k - 1);
    const std::size_t step = all.size();
    for (std::size_t i = 0; i < std::max(out.size(), in.size()); ++i)
      all.push_back({i < out.size() ? out[i] : Message{}, i < in.size() ? in[i] : Message{},
                     k == 0 || i >= out.size() ? 0 : step_before + i + 1});
    step_before = step;
  }
  // END EXERCISE
  return all;
}

/// Runs all exchanges on the ring. Several are in flight at a time: while one is added, others arrive.
/// @param into  into(i) returns the receive buffer of exchange i.
/// @param done  done(i) is called when exchange i has arrived.
template <class Into, class Done>
void go_round(const std::vector<Exchange>& all, const Tensor& values, Group& group, Into&& into, Done&& done)
{
  Transport& transport = group.transport();
  const int N = group.ranks(), next = (group.rank() + 1) % N, previous = (group.rank() + N - 1) % N;
  std::array<Ticket, ring_messages> tickets{};
  std::size_t finished = 0;
  const auto finish_one = [&] {
    transport.finish(tickets[finished % tickets.size()]);
    done(finished++);
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    while (finished < all[i].after || i - finished == tickets.size()) finish_one();
    const std::array transfers{Transfer{Transfer::Direction::receive, into(i), previous},
                               Transfer{Transfer::Direction::send, values.slice(all[i].sent), next}};
    tickets[i % tickets.size()] = transport.start(transfers);
  }
  while (finished < all.size()) finish_one();
}

/// Maximum number of elements of one message.
std::int64_t longest_message(const Tensor& values)
{
  return ring_message_bytes / bytes_of(values.type());
}

}  // namespace

std::vector<Share> shards_of(std::int64_t n, int ranks)
{
  std::vector<Share> shares;
  for (int r = 0; r < ranks; ++r) shares.push_back({Partition(n, ranks).shard(r)});
  return shares;
}

void ring_reduce_scatter_sum(const Tensor& values, const std::vector<Share>& shares, Group& group)
{
  check_summable(values.type());
  const std::vector<Exchange> all = exchanges(shares, longest_message(values), group.rank() - 1);
  std::int64_t most = 0;  // largest number of elements in one message
  for (const Exchange& exchange : all) most = std::max(most, exchange.received.count);

  const Tensor scratch = group.scratch(values.type(), ring_messages * most);
  const auto slot = [&](std::size_t i) {
    return scratch.slice({static_cast<std::int64_t>(i) % ring_messages * most, all[i].received.count});
  };
  go_round(all, values, group, slot, [&](std::size_t i) {
    if (!all[i].received.empty()) group.transport().stream().add(values.slice(all[i].received), slot(i));
  });
}

void ring_all_gather(const Tensor& values, const std::vector<Share>& shares, Group& group)
{
  const std::vector<Exchange> all = exchanges(shares, longest_message(values), group.rank());
  go_round(
      all, values, group, [&](std::size_t i) { return values.slice(all[i].received); }, [](std::size_t) {});
}

}  // namespace rankwise
