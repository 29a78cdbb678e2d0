#include "common/messages/watchdog/message_counts.hpp"

#include <map>
#include <tuple>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/messages/agreement.hpp"

namespace rankwise {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MessageCount, group, members, name, where, peer, sent, received)

namespace {

/// Messages from one rank to another, of one group and collective. All calling lines are counted together, because
/// the two ranks may call it from different ones.
using Kind = std::tuple<std::string, std::vector<int>, std::string, int, int>;

struct Sum {
  std::int64_t sent = 0, received = 0;
  std::string where{};  // first line of the sender
};

std::map<Kind, Sum> sums_of(const std::vector<std::vector<MessageCount>>& counts)
{
  std::map<Kind, Sum> sums;
  for (std::size_t r = 0; r < counts.size(); ++r)
    for (const MessageCount& count : counts[r]) {
      const int rank = static_cast<int>(r);
      Sum& sent = sums[{count.group, count.members, count.name, rank, count.peer}];
      sent.sent += count.sent;
      if (count.sent > 0 && sent.where.empty()) sent.where = count.where;
      sums[{count.group, count.members, count.name, count.peer, rank}].received += count.received;
    }
  return sums;
}

/// True if all ranks could count the program's own MPI messages.
bool counted_mpi(const std::vector<std::vector<MessageCount>>& counts)
{
  for (const std::vector<MessageCount>& of_rank : counts)
    for (const MessageCount& count : of_rank)
      if (count.peer == MessageCount::not_counted) return false;
  return true;
}

}  // namespace

std::string lost_messages(const std::vector<std::vector<MessageCount>>& counts)
{
  const bool with_mpi = counted_mpi(counts);
  for (const auto& [kind, sum] : sums_of(counts)) {
    const auto& [group, members, name, from, to] = kind;
    const bool by_mpi = members.empty();
    // The counts of MPI are a lower bound if some calls cannot be counted.
    if (sum.sent <= sum.received || (by_mpi && !with_mpi)) continue;
    const std::string what = by_mpi         ? "by MPI calls"
                             : name.empty() ? fmt::format("outside of the collectives of {} ({})", group, sum.where)
                                            : fmt::format("by {} of {} ({})", name, group, sum.where);
    return fmt::format(
        "rank {} sent {} message{} to rank {} {}, and rank {} received {} of them: the calls of the two "
        "ranks differ, for example in the root, or one was skipped",
        from, group_digits(sum.sent), sum.sent == 1 ? "" : "s", to, what, to, group_digits(sum.received));
  }
  return "";
}

std::string lost_messages(const Communicator& world, const std::vector<MessageCount>& counts)
{
  std::vector<std::vector<MessageCount>> all;
  const std::string own = json_text(counts);
  for (const std::string& text : gather_texts(world, own))
    all.push_back(parse_json(text).get<std::vector<MessageCount>>());
  return lost_messages(all);
}

}  // namespace rankwise
