#include "common/collectives/ring.hpp"

#include <algorithm>
#include <array>

#include "common/memory/element_sum.hpp"

namespace rankwise {

namespace {

/// One message of a share: elements of the whole vector.
using Message = Range;

/// A share cut into messages of at most @p longest elements, in order; pieces without elements have none.
std::vector<Message> messages_of(const Share& share, std::int64_t longest)
{
  std::vector<Message> messages;
  for (const Range& piece : share)
    for (std::int64_t first = piece.first; first < piece.end(); first += longest)
      messages.push_back({first, std::min(longest, piece.end() - first)});
  return messages;
}

/// What goes out and comes in at once on one rank; either may be empty.
struct Exchange {
  Message sent, received;
  std::size_t after = 0;  // exchanges that are finished before this one starts: what is sent has arrived by then
};

/// All exchanges of one rank, in order: N-1 steps, in step k share first-k goes out and share first-k-1 comes in.
std::vector<Exchange> exchanges(const std::vector<Share>& shares, std::int64_t longest, int first)
{
  const int N = static_cast<int>(shares.size());
  std::vector<std::vector<Message>> messages;
  for (const Share& share : shares) messages.push_back(messages_of(share, longest));
  const auto of = [&](int share) -> const std::vector<Message>& {
    return messages[static_cast<std::size_t>(((share % N) + N) % N)];
  };
  std::vector<Exchange> all;
  // BEGIN EXERCISE 02.1 points=10 "Ring reduce-scatter: fill all with the exchanges of N-1 steps. In step k share "
  //     "first-k goes out and share first-k-1 comes in, message by message; of(share) gives the messages, and where N "
  //     "does not divide the count one of the two shares may have a message more: its partner is empty. after is how "
  //     "many exchanges are finished by then: what goes out is what came in one step before."
  std::size_t step_before = 0;  // number of the first exchange of the step before
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

/// Sends round the ring what @p all says. Some exchanges are under way at a time: while one is added, others arrive.
/// @param into  into(i): where exchange i arrives.
/// @param done  done(i): exchange i has arrived.
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

/// The most elements of one message.
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
  std::int64_t most = 0;  // elements that arrive at once
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
