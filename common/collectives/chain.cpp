#include "common/collectives/chain.hpp"

#include <algorithm>
#include <optional>

#include "common/base/partition.hpp"

namespace rankwise {

void chain_broadcast(const Tensor& values, int root, Group& group)
{
  Transport& transport = group.transport();
  const int N = group.ranks();
  const int v = (group.rank() - root + N) % N;  // counted from the root
  const int previous = (group.rank() + N - 1) % N, next = (group.rank() + 1) % N;
  const std::int64_t longest = chain_message_bytes / bytes_of(values.type());
  const auto piece = [&](std::int64_t first) {
    return values.slice({first, std::min(longest, values.elements() - first)});
  };

  // The next piece is received while this one is forwarded.
  std::optional<Ticket> arriving, leaving;
  const auto receive = [&](std::int64_t first) {
    if (v == 0 || first >= values.elements()) return;
    const Transfer transfer{Transfer::Direction::receive, piece(first), previous};
    arriving = transport.start({&transfer, 1});
  };
  receive(0);
  for (std::int64_t first = 0; first < values.elements(); first += longest) {
    if (arriving) transport.finish(*arriving);
    receive(first + longest);
    if (leaving) transport.finish(*leaving);
    if (v + 1 < N) {
      const Transfer transfer{Transfer::Direction::send, piece(first), next};
      leaving = transport.start({&transfer, 1});
    }
  }
  if (leaving) transport.finish(*leaving);
}

}  // namespace rankwise
