// Point-to-point messages, and the layers around them.

#include <chrono>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <sys/resource.h>

#include "common/base/error.hpp"
#include "common/messages/mpi_transport.hpp"
#include "common/messages/watchdog/mpi_waits.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

/// All ranks pass @p values on around a ring, and what arrives is compared.
template <class T>
void pass_around(Transport& transport, std::int64_t n)
{
  const int N = transport.ranks(), r = transport.rank(), next = (r + 1) % N, previous = (r + N - 1) % N;
  Guarded<T> own(n, r), arrived(n, r);
  transport.exchange(own.tensor(), next, arrived.tensor(), previous);
  for (std::int64_t i = 0; i < n; ++i) REQUIRE(arrived.at(i) == value_at(previous, i));
  REQUIRE(arrived.intact());
}

#ifdef __linux__  // elsewhere MPI waits as it likes
/// How often this thread slept while rank 0 came 300 ms late to what all ranks @p meet() in.
template <class Meet>
long sleeps_while_waiting(Meet&& meet)
{
  const auto sleeps = [] {
    rusage usage{};
    check(getrusage(RUSAGE_THREAD, &usage) == 0, "asking how often this thread gave its core away");
    return usage.ru_nvcsw;
  };
  meet();
  const long before = sleeps();
  if (world().rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  meet();
  return sleeps() - before;
}
#endif

}  // namespace

#ifdef __linux__

TEST_CASE("MpiTransport: ranks that wait long sleep")
{
  GroupForTest test(Algorithm::ring);
  const auto meet = [&] { pass_around<float>(test.group.transport(), 3); };
  const long sleeps = sleeps_while_waiting(meet);
  if (world().rank() == 1) CHECK(sleeps >= 3);  // it receives from rank 0
}

TEST_CASE("Session: ranks that wait long in a call to MPI sleep")
{
  const auto meet = [] { check_mpi(MPI_Barrier(MPI_COMM_WORLD), "meeting"); };
  const long sleeps = sleeps_while_waiting(meet);
  if (world().rank() > 0) CHECK(sleeps >= 3);
}

TEST_CASE("ask_with_pauses: sleeps between questions until the answer is yes, or an error")
{
  const long sleeps = sleeps_while_waiting([] {
    const Stopwatch clock;
    const auto late = [&](int* done) {
      *done = clock.seconds() > 0.05 ? 1 : 0;
      return MPI_SUCCESS;
    };
    CHECK(ask_with_pauses(late) == MPI_SUCCESS);
  });
  CHECK(sleeps >= 3);
  CHECK(ask_with_pauses([](int*) { return MPI_ERR_OTHER; }) == MPI_ERR_OTHER);
}
#endif

TEST_CASE("polls_without_pause: MPICH and its derivatives do")
{
  CHECK(polls_without_pause("MPICH Version:\t5.0.2"));
  CHECK(polls_without_pause("MPI VERSION    : CRAY MPICH version 8.1"));
  CHECK(polls_without_pause("Intel(R) MPI Library 2021.18.1 for Linux* OS"));
  CHECK_FALSE(polls_without_pause("Open MPI v4.1.4, package: Debian OpenMPI"));
}

TEST_CASE("MpiTransport: exchange passes any type on, at any count")
{
  GroupForTest test(Algorithm::ring);
  for (const std::int64_t n : {0, 1, 2, 1001, 65537}) {
    pass_around<float>(test.group.transport(), n);
    pass_around<bf16>(test.group.transport(), n);
    pass_around<double>(test.group.transport(), n);
    pass_around<std::int32_t>(test.group.transport(), n);
    pass_around<std::int64_t>(test.group.transport(), n);
    pass_around<std::uint8_t>(test.group.transport(), n);
  }
}

TEST_CASE("MpiTransport: messages between two ranks arrive in the order in which they were started")
{
  GroupForTest test(Algorithm::ring);
  Transport& transport = test.group.transport();
  const int N = transport.ranks(), r = transport.rank();
  constexpr int messages = 20;
  std::vector<std::vector<std::int32_t>> sent, arrived;
  std::vector<Ticket> tickets;
  for (int m = 0; m < messages; ++m) {
    const auto n = static_cast<std::size_t>(1 + 997 * m);  // small ones may overtake large ones on the way
    sent.emplace_back(n, 100 * r + m);
    arrived.emplace_back(n, -1);
  }
  for (std::size_t m = 0; m < messages; ++m) {
    const auto tensor = [&](std::vector<std::int32_t>& v) {
      return Tensor(std::span<std::int32_t>(v), {static_cast<std::int64_t>(v.size())});
    };
    const Transfer both[] = {{Transfer::Direction::send, tensor(sent[m]), (r + 1) % N},
                             {Transfer::Direction::receive, tensor(arrived[m]), (r + N - 1) % N}};
    tickets.push_back(transport.start(both));
  }
  for (std::size_t m = messages; m-- > 0;) transport.finish(tickets[m]);  // in any order
  for (int m = 0; m < messages; ++m)
    REQUIRE(arrived[static_cast<std::size_t>(m)].back() == 100 * ((r + N - 1) % N) + m);
}

TEST_CASE("MpiTransport: impossible calls are Errors")
{
  GroupForTest test(Algorithm::ring);
  Transport& transport = test.group.transport();
  std::vector<float> values(4);
  const Tensor tensor(std::span<float>(values), {4});
  REQUIRE_THROWS_WITH(transport.send(tensor, transport.ranks()), Contains("a message between rank"));
  REQUIRE_THROWS_WITH(transport.finish(1000), Contains("not in flight"));
  const Ticket none = transport.start({});
  transport.finish(none);
  REQUIRE_THROWS_WITH(transport.finish(none), Contains("not in flight"));
}

TEST_CASE("MpiTransport: the receiver detects a message of another size than expected")
{
  GroupForTest test(Algorithm::ring);
  Transport& transport = test.group.transport();
  if (transport.ranks() == 1 || transport.rank() > 1) return;
  std::vector<float> values(8);
  const Tensor tensor(std::span<float>(values), {8});
  if (transport.rank() == 0) {
    transport.send(tensor.slice({0, 3}), 1);
    return;
  }
  REQUIRE_THROWS_WITH(transport.receive(tensor, 0), Contains("rank 0 sent 12 bytes where 32 were expected"));
}

TEST_CASE("message_tag: any difference between two collectives, but for the line, makes another tag")
{
  const std::string name = "all-reduce";  // not at the place of the literal
  const SourceLocation here = SourceLocation::current();
  const Collective collective{"all-reduce", "ring", DType::f32, 12, 0, here, "h.2.mlp"};
  const auto tag = [](const Collective& c, std::int64_t number = 17) { return message_tag(c, number, 32767); };
  std::set<int> tags{tag(collective)};
  REQUIRE(tags == std::set<int>{tag({name, "ring", DType::f32, 12, 0, SourceLocation::current(), "h.2.mlp"})});
  tags.insert(tag(collective, 18));
  tags.insert(tag({"broadcast", "ring", DType::f32, 12, 0, here, "h.2.mlp"}));
  tags.insert(tag({"all-reduce", "tree", DType::f32, 12, 0, here, "h.2.mlp"}));
  tags.insert(tag({"all-reduce", "ring", DType::i32, 12, 0, here, "h.2.mlp"}));
  tags.insert(tag({"all-reduce", "ring", DType::f32, 13, 0, here, "h.2.mlp"}));
  tags.insert(tag({"all-reduce", "ring", DType::f32, 12, 1, here, "h.2.mlp"}));
  tags.insert(tag({"all-reduce", "ring", DType::f32, 12, 0, here, "h.3.mlp"}));
  REQUIRE(tags.size() == 8);
  REQUIRE(*tags.begin() >= 1);
  REQUIRE(*tags.rbegin() <= 32767);
  for (std::int64_t number = 0; number < 100; ++number) REQUIRE(message_tag(collective, number, 1) == 1);
}

TEST_CASE("MpiTransport: messages of a collective do not meet those outside of it")
{
  GroupForTest test(Algorithm::ring);
  Transport& transport = test.group.transport();
  if (transport.ranks() == 1 || transport.rank() > 1) return;
  std::vector<float> outside(1, 1.0f), inside(1, 2.0f);
  const Tensor first(std::span<float>(outside), {1}), second(std::span<float>(inside), {1});
  if (transport.rank() == 0) {
    transport.send(first, 1);
    const CollectiveScope scope(test.group, {"all-reduce", "ring", DType::f32, 1});
    return transport.send(second, 1);
  }
  inside[0] = outside[0] = 0;
  const Transfer receive{Transfer::Direction::receive, second, 0};
  Ticket ticket = 0;
  {
    const CollectiveScope scope(test.group, {"all-reduce", "ring", DType::f32, 1});
    ticket = transport.start({&receive, 1});  // before the other one
  }
  transport.receive(first, 0);
  transport.finish(ticket);
  REQUIRE(outside[0] == 1);
  REQUIRE(inside[0] == 2);
}

TEST_CASE("CollectiveScope: collectives of one group are not nested")
{
  GroupForTest test(Algorithm::ring);
  const CollectiveScope outer(test.group, {"all-reduce", "ring"});
  REQUIRE_THROWS_WITH(barrier(test.group), Contains("inside another one"));
}

TEST_CASE("TrafficLedger: sends are counted by group and collective, receives are not")
{
  GroupForTest test(Algorithm::ring);
  const int N = test.group.ranks();
  std::vector<float> values(12);
  const Tensor tensor(std::span<float>(values), {12});
  if (N > 1) {
    if (test.group.rank() == 0) test.group.transport().send(tensor, 1);
    if (test.group.rank() == 1) test.group.transport().receive(tensor, 0);
    const std::int64_t first = test.group.rank() == 0 ? 1 : 0;
    REQUIRE(test.traffic.of("world", "send") == Traffic{.messages = first, .bytes = 48 * first});
  }
  test.traffic.clear();
  broadcast(tensor, 0, test.group);
  barrier(test.group);
  const std::int64_t passes_on = test.group.rank() + 1 < N ? 1 : 0;
  REQUIRE(test.traffic.of("world", "broadcast") == Traffic{.messages = passes_on, .bytes = 48 * passes_on});
  Traffic sum = test.traffic.of("world", "broadcast");
  sum += test.traffic.of("world", "barrier");
  REQUIRE(test.traffic.of("world") == sum);
  REQUIRE(test.traffic.total() == sum);
  REQUIRE(test.traffic.of("nobody") == Traffic{});
}

TEST_CASE("TrafficLedger: messages are events from record() on, with their collective and its purpose")
{
  GroupForTest test(Algorithm::ring);
  const int N = test.group.ranks(), r = test.group.rank();
  std::vector<float> values(12);
  const Tensor tensor(std::span<float>(values), {12});
  broadcast(tensor, 0, test.group);
  CHECK(test.traffic.events().empty());
  test.traffic.record();
  {
    const CollectiveLabel label("weights");
    broadcast(tensor, 0, test.group);
  }
  test.traffic.count_axis("world", 1);
  broadcast(tensor, 0, test.group);
  test.traffic.count_axis("world", -1);
  std::vector<MessageEvent> sent, received;
  for (const MessageEvent& event : test.traffic.events()) (event.sends ? sent : received).push_back(event);
  REQUIRE(sent.size() == (r + 1 < N ? 2 : 0));
  REQUIRE(received.size() == (r > 0 ? 2 : 0));
  for (const auto& [events, peer] : {std::pair(sent, r + 1), std::pair(received, r - 1)})
    for (std::size_t i = 0; i < events.size(); ++i) {
      CHECK(events[i].peer == peer);
      CHECK(events[i].number == static_cast<std::int64_t>(i));
      CHECK(events[i].bytes == 48);
      CHECK(events[i].all_bytes == 48);
      CHECK(events[i].group == "world");
      CHECK(events[i].collective == "broadcast");
      CHECK(events[i].call == events[0].call + static_cast<std::int64_t>(i));
      CHECK(events[i].purpose == (i == 0 ? "weights" : ""));
      CHECK(events[i].counted == (i == 1));
      CHECK(short_file_name(events[i].where.file_name()) == "tests/common/messages/test_transport.cpp");
    }
}

TEST_CASE("TrafficLedger: bytes are counted by the receiver's rank in the job")
{
  GroupForTest test(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  std::vector<float> values(12);
  const Tensor tensor(std::span<float>(values), {12});
  broadcast(tensor, 0, test.group);
  std::map<int, std::int64_t> receivers;
  if (r + 1 < N) receivers[r + 1] = 48;
  REQUIRE(test.traffic.receivers_of("world") == receivers);

  // A group in which the ranks stand the other way round: its rank 0 is the last of the job.
  Group reversed("reversed", test.group.communicator().split(0, -r), test.setup);
  broadcast(tensor, 0, reversed);
  receivers.clear();
  if (r > 0) receivers[r - 1] = 48;
  REQUIRE(test.traffic.receivers_of("reversed") == receivers);

  test.traffic.count_to("by hand", 7, 10);
  test.traffic.count_to("by hand", 7, 5);
  test.traffic.count_to("by hand", 2, 1);
  REQUIRE(test.traffic.receivers_of("by hand") == std::map<int, std::int64_t>{{2, 1}, {7, 15}});
  REQUIRE(test.traffic.receivers_of("nobody").empty());
  test.traffic.clear();
  REQUIRE(test.traffic.receivers_of("by hand").empty());
}

TEST_CASE("ComparingTransport: calls that agree pass, others are refused with each rank's call")
{
  GroupForTest test(Algorithm::ring, 0, true);
  const int N = test.group.ranks(), r = test.group.rank();
  std::vector<float> values(8, 1.0f);
  std::vector<std::int32_t> whole(8, 1);
  all_reduce_sum(Tensor(std::span<float>(values), {8}), test.group);
  REQUIRE(values[7] == static_cast<float>(N));
  if (N == 1) return;

  const bool last = r + 1 == N;
  const auto message = [&](auto&& call) -> std::string {
    try {
      call();
    } catch (const UserError& error) {
      return error.what();
    }
    return "nobody noticed";
  };
  const std::string count = message([&] {
    all_reduce_sum(Tensor(std::span<float>(values), {8}).slice({0, last ? 7 : 8}), test.group);
  });
  REQUIRE_THAT(count, Contains("do not call the same collective at tests/common/messages/test_transport.cpp"));
  REQUIRE_THAT(count, Contains(fmt::format("rank {}: all-reduce (ring) of 7 elements of type f32, root 0", N - 1)));
  REQUIRE_THAT(count, Contains(": all-reduce (ring) of 8 elements of type f32, root 0"));

  REQUIRE_THAT(message([&] {
                 all_reduce_sum(
                     last ? Tensor(std::span<std::int32_t>(whole), {8}) : Tensor(std::span<float>(values), {8}),
                     test.group);
               }),
               Contains("of type i32"));
  REQUIRE_THAT(message([&] { broadcast(Tensor(std::span<float>(values), {8}), last ? 1 : 0, test.group); }),
               Contains("root 1"));
  REQUIRE_THAT(message([&] {
                 if (last) return barrier(test.group);
                 all_reduce_sum(Tensor(std::span<float>(values), {8}), test.group);
               }),
               Contains("barrier (ring)"));
}

TEST_CASE("sent_to_ranks: groups whose names begin with the axis's, and no others")
{
  TrafficLedger ledger;
  for (const char* group : {"tp", "tp inside", "tp between", "tied", "pp forward"})
    ledger.count(group, "all-reduce", {1, 10});
  ledger.count_to("tp", 1, 10);
  ledger.count_to("tp inside", 1, 15);
  ledger.count_to("tp inside", 3, 5);
  ledger.count_to("tp between", 2, 30);
  ledger.count_to("tied", 0, 1000);
  ledger.count_to("pp forward", 3, 7);
  CHECK(sent_to_ranks(ledger, "tp", 4) == std::vector<std::int64_t>{0, 25, 30, 5});
  CHECK(sent_to_ranks(ledger, "pp", 4) == std::vector<std::int64_t>{0, 0, 0, 7});
  CHECK(sent_to_ranks(ledger, "t", 4) == std::vector<std::int64_t>{0, 0, 0, 0});
  CHECK(sent_to_ranks(ledger, "dp", 2) == std::vector<std::int64_t>{0, 0});
}
