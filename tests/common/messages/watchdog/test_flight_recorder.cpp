// The flight recorder's records of a rank, while collectives and messages are pending and after them.

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "common/base/activity.hpp"
#include "common/messages/watchdog/watchdog.hpp"
#include "common/program/code_places.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;
using namespace std::chrono_literals;

namespace {

/// How many times longer than on an idle machine things take here; tests/run.sh measures it.
double slowness()
{
  const char* measured = std::getenv("RANKWISE_SLOWNESS");
  return measured == nullptr ? 1 : std::atof(measured);
}

/// A group whose collectives are recorded.
struct Recorded {
  explicit Recorded(Algorithm algorithm = Algorithm::ring, int ranks_per_node = 0)
      : setup{memory, stream.get(), &traffic, algorithm, ranks_per_node}
  {
    setup.recorder = &recorder;
    group = std::make_unique<Group>("world", Communicator::world(), setup);
  }

  /// The record of the group.
  TrackRecord track(std::size_t number = 0) const { return recorder.record().tracks.at(number); }

  MemoryLedger ledger;
  TrafficLedger traffic;
  TimeLedger time;
  FlightRecorder recorder{&time};
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  DeviceMemory memory{device.get(), &ledger};
  GroupSetup setup;
  std::unique_ptr<Group> group;
  std::vector<float> values = std::vector<float>(12, 1.0f);
  Tensor tensor{std::span<float>(values), {12}};
};

}  // namespace

TEST_CASE("FlightRecorder: the last eight collectives, with all that they were called with")
{
  Recorded test;
  const int N = test.group->ranks();
  for (int i = 0; i < 10; ++i) barrier(*test.group);
  const std::uint32_t line = __LINE__ + 3;
  {
    const CollectiveLabel label("h.2.mlp");
    reduce_sum(test.tensor, N - 1, *test.group);
  }
  const TrackRecord track = test.track();
  REQUIRE(track.group == "world");
  REQUIRE(track.members.size() == static_cast<std::size_t>(N));
  REQUIRE(track.calls == 11);
  REQUIRE(track.last.size() == FlightRecorder::kept_calls);
  for (std::size_t i = 0; i < track.last.size(); ++i)
    REQUIRE(track.last[i].number == static_cast<std::int64_t>(i) + 4);
  const CallRecord& last = track.last.back();
  REQUIRE(last.name == "reduce");
  REQUIRE(last.algorithm == "ring");
  REQUIRE(last.type == "f32");
  REQUIRE(last.count == 12);
  REQUIRE(last.root == N - 1);
  REQUIRE(last.label == "h.2.mlp");
  REQUIRE(last.where == fmt::format("tests/common/messages/watchdog/test_flight_recorder.cpp:{}", line));
  REQUIRE_FALSE(last.open());
  REQUIRE(last.began_s >= last.ended_s);
  REQUIRE(track.last[6].name == "barrier");
  REQUIRE(track.last[6].label.empty());
  REQUIRE(track.transfers.empty());
  REQUIRE(test.recorder.record().longest_s() == 0);
}

TEST_CASE("FlightRecorder: a collective is pending from enter to leave, and progress restarts its time")
{
  Recorded test;
  {
    const CollectiveScope scope(*test.group, {"all-reduce", "ring", DType::f32, 12});
    std::this_thread::sleep_for(50ms);
    const CallRecord call = test.track().last.back();
    REQUIRE(call.open());
    REQUIRE(call.still_s >= 0.05);
    REQUIRE(test.recorder.record().longest_s() >= 0.05);
    test.group->transport().finish(test.group->transport().start({}));
    const CallRecord moved = test.track().last.back();
    REQUIRE(moved.still_s < moved.began_s - 0.049);
    REQUIRE(test.recorder.record().longest_s() < test.track().last.back().began_s - 0.049);
  }
  std::this_thread::sleep_for(20ms);
  REQUIRE_FALSE(test.track().last.back().open());
  REQUIRE(test.track().last.back().ended_s >= 0.02);
  REQUIRE(test.recorder.record().longest_s() == 0);
}

TEST_CASE("FlightRecorder: messages that are not finished, within a collective and outside")
{
  Recorded test;
  Transport& transport = test.group->transport();
  const int N = transport.ranks(), r = transport.rank(), next = (r + 1) % N, previous = (r + N - 1) % N;
  std::vector<float> arrived(12), empty(1);
  const Transfer all[] = {
      {Transfer::Direction::receive, Tensor(std::span<float>(arrived), {12}), previous},
      {Transfer::Direction::send, test.tensor, next},
      {Transfer::Direction::send, Tensor(std::span<float>(empty), {1}).slice({0, 0}), next},
  };
  const auto check_both = [&](std::int64_t collective) {
    const Ticket ticket = transport.start(all);
    const auto open = test.track().transfers;
    REQUIRE(open.size() == 2);  // nothing is nothing
    REQUIRE(open[0].label.empty());
    REQUIRE_FALSE(open[0].sends);
    REQUIRE(open[0].peer == previous);
    REQUIRE(open[1].sends);
    REQUIRE(open[1].peer == next);
    for (const TransferRecord& message : open) {
      REQUIRE(message.bytes == 48);
      REQUIRE(message.collective == collective);
      REQUIRE_FALSE(message.waited_for);
      REQUIRE_THAT(message.where, Contains("test_flight_recorder.cpp:"));
    }
    transport.finish(ticket);
    REQUIRE(test.track().transfers.empty());
  };
  check_both(0);
  barrier(*test.group);
  {
    const CollectiveScope scope(*test.group, {"all-reduce", "ring", DType::f32, 12});
    check_both(2);
  }
  check_both(0);
}

TEST_CASE(
    "FlightRecorder: a message that is waited for is known as such, with what it is for and the line of the wait")
{
  Recorded test;
  Transport& transport = test.group->transport();
  if (transport.ranks() == 1) return;
  if (transport.rank() == 0) {
    std::thread later([&] {
      while (test.track().transfers.empty() || !test.track().transfers[0].waited_for)
        std::this_thread::sleep_for(1ms);
      const TransferRecord message = test.track().transfers[0];
      if (!flight_recorder().record().mpi_calls.empty()) throw Error("a message of ours is seen twice");
      std::vector<float> go(1);
      check_mpi(MPI_Send(go.data(), 1, MPI_FLOAT, 1, 0, MPI_COMM_WORLD), "telling rank 1 to send");
      if (message.peer != 1 || message.label != "h.2.mlp") throw Error("another message");
    });
    const CollectiveLabel label("h.2.mlp");
    transport.receive(test.tensor, 1);
    later.join();
  }
  if (transport.rank() == 1) {
    std::vector<float> go(1);
    check_mpi(MPI_Recv(go.data(), 1, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "waiting for rank 0");
    transport.send(test.tensor, 0);
  }
  REQUIRE(test.track().transfers.empty());
}

TEST_CASE("FlightRecorder: a rejected collective is not recorded")
{
  Recorded test;
  {
    const CollectiveScope outer(*test.group, {"all-reduce", "ring"});
    REQUIRE_THROWS_WITH(barrier(*test.group), Contains("inside another one"));
    REQUIRE(test.track().calls == 1);
    REQUIRE(test.track().last.back().open());
    REQUIRE(test.track().last.back().name == "all-reduce");
  }
  barrier(*test.group);
  REQUIRE(test.track().last.back().number == 2);
}

TEST_CASE("FlightRecorder: the two levels of a hierarchical group have tracks of their own")
{
  Recorded test(Algorithm::hierarchical, 1);
  all_reduce_sum(test.tensor, *test.group);
  std::set<std::string> groups;
  for (const TrackRecord& track : test.recorder.record().tracks) {
    groups.insert(track.group);
    REQUIRE(track.calls == 1);
    if (track.group == "world inside") REQUIRE(track.members == std::vector<int>{test.group->rank()});
  }
  REQUIRE(groups == std::set<std::string>{"world", "world inside", "world between"});
}

TEST_CASE("FlightRecorder: a group made again replaces the earlier one and counts how many came before")
{
  Recorded test;
  barrier(*test.group);
  REQUIRE(test.track().made == 0);
  test.group = nullptr;
  REQUIRE(test.track().calls == 1);  // still known
  test.group = std::make_unique<Group>("world", Communicator::world(), test.setup);
  REQUIRE(test.recorder.record().tracks.size() == 1);
  REQUIRE(test.track().made == 1);
  REQUIRE(test.track().calls == 0);
  const Group second("world", Communicator::world(), test.setup);
  REQUIRE(test.track(1).made == 2);
}

TEST_CASE("FlightRecorder: handles, the open span, and whether the rank has ended")
{
  Recorded test;
  const std::int64_t first = test.recorder.handle_started("bucket 0", SourceLocation::current());
  const std::int64_t second = test.recorder.handle_started("bucket 1", SourceLocation::current());
  test.recorder.handle_waited(first);
  {
    const auto outer = test.time.span(Work::compute, "step");
    const auto inner = test.time.span(Work::compute, "backward");
    std::this_thread::sleep_for(20ms);
    const FlightRecord record = test.recorder.record();
    REQUIRE(record.handles.size() == 1);
    REQUIRE(record.handles[0].label == "bucket 1");
    REQUIRE_THAT(record.handles[0].where, Contains("test_flight_recorder.cpp:"));
    REQUIRE(record.longest_s() >= 0.02);
    REQUIRE_THAT(record.span, Contains("backward (tests/common/messages/watchdog/test_flight_recorder.cpp:"));
  }
  test.recorder.handle_waited(second);
  REQUIRE(test.recorder.record().longest_s() == 0);
  REQUIRE(test.recorder.record().span.empty());
  test.recorder.set_finished(true);
  REQUIRE(test.recorder.record().finished);
}

TEST_CASE("FlightRecorder: messages are counted by group, collective and rank, over all groups of that name")
{
  Recorded test;
  const int N = test.group->ranks(), r = test.group->rank(), next = (r + 1) % N, previous = (r + N - 1) % N;
  std::vector<float> arrived(12);
  const Tensor into(std::span<float>(arrived), {12});
  const auto exchange = [&] {
    test.group->transport().exchange(test.tensor, next, into, previous);
    const CollectiveScope scope(*test.group, {"all-reduce", "ring", DType::f32, 12});
    test.group->transport().exchange(test.tensor, next, into, previous);
    test.group->transport().exchange(test.tensor, next, into, previous);
  };
  exchange();
  test.group = nullptr;
  test.group = std::make_unique<Group>("world", Communicator::world(), test.setup);
  exchange();
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> sent_received;
  for (const MessageCount& count : test.recorder.counts()) {
    REQUIRE(count.group == "world");
    REQUIRE(count.members.size() == static_cast<std::size_t>(N));
    REQUIRE_THAT(count.where, Contains("test_flight_recorder.cpp:"));
    sent_received[count.name].first += count.peer == next ? count.sent : 0;
    sent_received[count.name].second += count.peer == previous ? count.received : 0;
  }
  REQUIRE(sent_received ==
          std::map<std::string, std::pair<std::int64_t, std::int64_t>>{{"", {2, 2}}, {"all-reduce", {4, 4}}});
  REQUIRE(lost_messages(Communicator::world(), test.recorder.counts()).empty());
}

TEST_CASE(
    "FlightRecorder: calls of MPI in the program itself are seen while they last, with the other rank's number")
{
  const int N = world().ranks(), r = world().rank();
  const auto calls = [] { return flight_recorder().record().mpi_calls; };
  const std::uint64_t before = current_activity().finished;
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "waiting");
  REQUIRE(calls().empty());
  REQUIRE(current_activity().finished > before);
  if (N == 1) return;

  const Communicator reversed = Communicator::world().split(0, -r);  // rank 1 is N - 2 there, rank 0 is N - 1
  int word = 0;
  if (r == 0) {
    MpiCallRecord seen;
    std::thread later([&] {
      while (calls().empty()) std::this_thread::sleep_for(1ms);
      seen = calls().front();
      check_mpi(MPI_Send(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD), "telling rank 1 to send");
    });
    check_mpi(MPI_Recv(&word, 1, MPI_INT, N - 2, 0, reversed.handle(), MPI_STATUS_IGNORE), "waiting for rank 1");
    later.join();
    REQUIRE(seen.name == "MPI_Recv");
    REQUIRE(seen.peer == 1);
    REQUIRE(seen.bytes == 4);
    REQUIRE_THAT(names_of_places({seen.code}).at(0),
                 Contains("T_E_S_T") || Contains("TEST"));  // the test case itself
  }
  if (r == 1) {
    check_mpi(MPI_Recv(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "waiting for rank 0");
    check_mpi(MPI_Send(&word, 1, MPI_INT, N - 1, 0, reversed.handle()), "sending to rank 0");
  }
  REQUIRE(calls().empty());
}

TEST_CASE("CollectiveLabel: the innermost of this thread")
{
  REQUIRE(CollectiveLabel::current().empty());
  {
    const CollectiveLabel outer("step 3");
    {
      const CollectiveLabel inner("h.2.mlp");
      REQUIRE(CollectiveLabel::current() == "h.2.mlp");
      std::string elsewhere = "?";
      std::thread([&] { elsewhere = CollectiveLabel::current(); }).join();
      REQUIRE(elsewhere.empty());
      REQUIRE(Collective{"barrier", "ring"}.label == "h.2.mlp");
    }
    REQUIRE(CollectiveLabel::current() == "step 3");
  }
  REQUIRE(CollectiveLabel::current().empty());
}

TEST_CASE("Watchdog: raises no alarm in a correct job, however late a rank ends")
{
  Recorded test;
  {
    const Watchdog watchdog(test.recorder, 30);
    for (int i = 0; i < 20; ++i) all_reduce_sum(test.tensor, *test.group);
    std::this_thread::sleep_for(20ms * test.group->rank());
  }
  REQUIRE(test.recorder.record().finished);
  const Watchdog another(test.recorder, 30);
  REQUIRE_FALSE(test.recorder.record().finished);
}

TEST_CASE("Watchdog: slow progress raises no alarm")
{
  Recorded test;
  const double timeout_s = std::min(slowness(), 4.0);  // a move takes 5 ms of it, all half as long again
  const Watchdog watchdog(test.recorder, timeout_s);
  const CollectiveScope scope(*test.group, {"all-reduce", "ring", DType::f32, 12});
  for (const Stopwatch clock; clock.seconds() < 1.5 * timeout_s;) {
    std::this_thread::sleep_for(5ms);
    test.group->transport().finish(test.group->transport().start({}));
  }
}

TEST_CASE("Watchdog: an exception does not wait for the other ranks")
{
  Recorded test;
  const int N = test.group->ranks(), r = test.group->rank();
  int word = 0;
  const auto fail = [&] {
    const Watchdog watchdog(test.recorder, 30);
    if (r > 0)  // a rank fails when the one before it has done so, and is past its watchdog
      check_mpi(MPI_Recv(&word, 1, MPI_INT, r - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "waiting for a failure");
    throw Error("on purpose");
  };
  REQUIRE_THROWS_AS(fail(), Error);
  if (r + 1 < N) check_mpi(MPI_Send(&word, 1, MPI_INT, r + 1, 0, MPI_COMM_WORLD), "telling of a failure");
}
