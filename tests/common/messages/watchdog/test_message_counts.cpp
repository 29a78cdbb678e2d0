// Messages that were sent and not received, found from the counts of all ranks.

#include "common/messages/watchdog/message_counts.hpp"
#include "tests/catch.hpp"
#include "tests/world.hpp"

using namespace rankwise;

namespace {

MessageCount count(int peer, std::int64_t sent, std::int64_t received, const std::string& name = "broadcast",
                   const std::string& where = "step.cpp:40")
{
  return {"world", {0, 1}, name, where, peer, sent, received};
}

MessageCount by_mpi(int peer, std::int64_t sent, std::int64_t received)
{
  return {.group = "MPI", .peer = peer, .sent = sent, .received = received};
}

}  // namespace

TEST_CASE("lost_messages: empty where each message was received, whichever lines sent and received it")
{
  CHECK(lost_messages({{}, {}}).empty());
  CHECK(lost_messages({{count(1, 3, 2), by_mpi(1, 1, 0)}, {count(0, 2, 3), by_mpi(0, 0, 1)}}).empty());
  CHECK(lost_messages({{count(1, 3, 0)}, {count(0, 0, 1), count(0, 0, 2, "broadcast", "step.cpp:50")}}).empty());
  CHECK(lost_messages({{count(0, 4, 4)}}).empty());  // to itself
}

TEST_CASE("lost_messages: names ranks, numbers, collective, group and line")
{
  CHECK_THAT(
      lost_messages({{count(1, 1003, 0)}, {count(0, 0, 1002)}}),
      StartsWith(
          "rank 0 sent 1,003 messages to rank 1 by broadcast of world (step.cpp:40), and rank 1 received 1,002 "
          "of them: "));
  CHECK_THAT(
      lost_messages({{}, {count(0, 1, 0, "")}}),
      StartsWith("rank 1 sent 1 message to rank 0 outside of the collectives of world (step.cpp:40), and rank 0 "
                 "received 0 of them: "));
  CHECK_THAT(lost_messages({{by_mpi(1, 2, 0)}, {by_mpi(0, 0, 1)}}),
             StartsWith("rank 0 sent 2 messages to rank 1 by MPI calls, and rank 1 received 1 of them: "));
}

TEST_CASE("lost_messages: a broadcast and a reduce in its place are counted separately")
{
  CHECK_THAT(lost_messages({{count(1, 1, 0)}, {count(0, 0, 1, "reduce")}}), StartsWith("rank 0 sent 1 message"));
}

TEST_CASE("lost_messages: omits the program's MPI calls where a rank could not count them")
{
  const MessageCount not_counted{.group = "MPI", .peer = MessageCount::not_counted};
  CHECK(lost_messages({{by_mpi(1, 2, 0)}, {not_counted}}).empty());
  CHECK_THAT(lost_messages({{by_mpi(1, 2, 0), count(1, 1, 0)}, {not_counted}}),
             StartsWith("rank 0 sent 1 message"));
}

TEST_CASE("lost_messages: gives the same text on all ranks of a job")
{
  const int N = world().ranks(), r = world().rank();
  const std::vector<MessageCount> own{by_mpi((r + 1) % N, 2, 0), by_mpi((r + N - 1) % N, 0, 2)};
  CHECK(lost_messages(Communicator::world(), own).empty());
  CHECK_THAT(lost_messages(Communicator::world(), {by_mpi(0, r == N - 1 ? 5 : 0, 0)}),
             StartsWith("rank " + std::to_string(N - 1) + " sent 5 messages to rank 0 by MPI calls"));
}
