// The channels of lesson 09: rows sent in one direction between two ranks while both compute.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "lessons/parallel/pipeline/row_channel.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

constexpr std::int64_t R = 6, C = 10;

/// Some time in which a rank computes.
void nap(int ms)
{
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

/// A channel from each rank to the next one, and from the last to the first; none where there is one rank.
struct Ring {
  explicit Ring(const Shape& rows = {R, C}, const std::function<void(GroupSetup&)>& change = {}) : size(rows)
  {
    GroupSetup setup = test.setup;
    if (change) change(setup);
    const int N = world().ranks(), self = world().rank();
    for (int sender = 0; sender < N && N > 1; ++sender) {
      const int receiver = (sender + 1) % N;
      const bool inside = self == sender || self == receiver;
      Communicator ranks = test.group.communicator().split(inside ? 0 : 1, self == receiver ? 1 : 0);
      const ChannelSetup channel{setup, DType::f32, size, &progress, &time};
      if (self == sender) out.emplace("out", std::move(ranks), channel);
      if (self == receiver) in.emplace("in", std::move(ranks), channel);
    }
  }

  /// Sends message @p number: all its elements depend on it and on this rank.
  void send(int number)
  {
    const Tensor buffer = out->buffer("a message");
    CHECK(buffer.shape() == size);
    for (std::int64_t i = 0; i < buffer.elements(); ++i)
      buffer.data<float>()[i] = content(world().rank(), number, i);
    out->send();
  }
  /// Elements of a message from the rank before that are not those of message @p number.
  std::int64_t wrong(const Tensor& rows, int number) const
  {
    const int before = (world().rank() + world().ranks() - 1) % world().ranks();
    std::int64_t count = rows.shape() == size ? 0 : 1;
    for (std::int64_t i = 0; i < rows.elements(); ++i)
      count += rows.data<float>()[i] == content(before, number, i) ? 0 : 1;
    return count;
  }
  static float content(int sender, int number, std::int64_t i)
  {
    return static_cast<float>(1000 * sender + 100 * number + value_at(sender, i));
  }

  Shape size;
  GroupForTest test{Algorithm::ring};
  TimeLedger time;
  MessageProgress progress;
  std::optional<RowSender> out;
  std::optional<RowReceiver> in;
};

/// Which side takes its time.
enum class Slow { nobody, senders, receivers, odd_ranks };

/// Sends and receives @p messages messages alternately, @p ahead of them before the first is received.
void check_messages(Ring& ring, int messages, int ahead, Slow slow)
{
  ring.in->begin(messages);
  for (int i = 0; i < messages + ahead; ++i) {
    if (i < messages) {
      if (slow == Slow::senders || (slow == Slow::odd_ranks && world().rank() % 2 == 1)) nap(2);
      ring.send(i);
    }
    if (i < ahead) continue;
    const Tensor rows = ring.in->next("a message");
    if (slow == Slow::receivers) nap(2);  // rows stay as they are, whatever comes meanwhile
    CHECK(ring.wrong(rows, i - ahead) == 0);
    ring.in->done();
  }
  ring.out->finish();
}

/// Until all ranks are there.
void meet(Ring& ring)
{
  barrier(ring.test.group);
}

}  // namespace

TEST_CASE("RowSender, RowReceiver: messages arrive in order and whole, in all directions, whichever rank is slow")
{
  if (world().ranks() == 1) return;
  for (const bool chaotic : {false, true})
    for (const Slow slow : {Slow::nobody, Slow::senders, Slow::receivers, Slow::odd_ranks})
      for (const int ahead : {0, 1, 2}) {
        INFO("chaos " << chaotic << ", slow " << static_cast<int>(slow) << ", ahead " << ahead);
        Ring ring({R, C}, [&](GroupSetup& setup) { setup.chaos = chaotic ? 3 : 0; });
        check_messages(ring, 7, ahead, slow);
        check_messages(ring, 1, ahead, slow);  // another run of the same channel
        CHECK(ring.test.traffic.of("out") == Traffic{8, 8 * 4 * R * C});
        CHECK(ring.test.traffic.of("in") == Traffic{});
      }
}

TEST_CASE("RowSender: has two buffers, so two messages are sent before the receiver asks for them")
{
  if (world().ranks() == 1) return;
  // A message does not leave before it is asked for.
  Ring ring({R, C}, [](GroupSetup& setup) { setup.chaos = 1; });
  CHECK(ring.test.ledger.current(Tier::device)[Category::communication] == 2 * channel_bytes(DType::f32, {R, C}));
  CHECK(channel_bytes(DType::f32, {R, C}) == 2 * 4 * R * C);
  CHECK(channel_bytes(DType::bf16, {R, C}) == 2 * 2 * R * C);
  const std::byte* const first = ring.out->buffer("the first").raw();
  ring.send(0);
  const std::byte* const second = ring.out->buffer("the second").raw();
  ring.send(1);
  meet(ring);
  CHECK(first != second);
  ring.in->begin(3);
  CHECK(ring.wrong(ring.in->next("the first"), 0) == 0);
  ring.in->done();
  CHECK(ring.out->buffer("the third").raw() == first);
  ring.send(2);
  for (const int i : {1, 2}) {
    CHECK(ring.wrong(ring.in->next("the others"), i) == 0);
    ring.in->done();
  }
  ring.out->finish();
}

TEST_CASE("RowReceiver: a message must be announced before next(), and used before the next begin()")
{
  if (world().ranks() == 1) return;
  Ring ring;
  CHECK_THROWS_AS(ring.in->next("nothing"), Error);
  ring.in->begin(1);
  CHECK_THROWS_AS(ring.in->begin(1), Error);
  ring.send(0);
  CHECK(ring.wrong(ring.in->next("the message"), 0) == 0);
  CHECK_THROWS_AS(ring.in->begin(1), Error);  // done() is missing
  ring.in->done();
  CHECK_THROWS_AS(ring.in->next("nothing"), Error);
  ring.in->begin(0);
  ring.out->finish();
}

TEST_CASE("ChannelEnd: joins two ranks, not more and not fewer")
{
  GroupForTest test(Algorithm::ring);
  TimeLedger time;
  const ChannelSetup setup{test.setup, DType::f32, {R, C}, nullptr, &time};
  const bool two = world().ranks() == 2;
  if (two) CHECK_NOTHROW(RowReceiver("two", Communicator::world(), setup));
  if (!two) CHECK_THROWS_AS(RowReceiver("others", Communicator::world(), setup), Error);
}

TEST_CASE("RowReceiver: waiting is counted as such, under the name of what it is for")
{
  if (world().ranks() == 1) return;
  Ring ring;
  ring.time.record();
  ring.in->begin(1);
  ring.send(0);
  ring.in->next("forward of micro-batch 3 in stage 1");
  ring.in->done();
  ring.out->finish();
  const std::vector<TraceEvent> events = ring.time.events();
  REQUIRE(!events.empty());
  CHECK(events[0].name == "forward of micro-batch 3 in stage 1");
  CHECK(events[0].work == Work::waiting);
}

TEST_CASE("MessageProgress: a large message arrives while both ranks are busy with something else")
{
  // A file, and not MPI, signals to each rank that the message of the rank before it has been sent.
  const auto file_of = [](int rank) {
    return std::filesystem::temp_directory_path() / fmt::format("rankwise_{}_progress_{}", getppid(), rank);
  };
  const int N = world().ranks(), self = world().rank();
  if (N == 1) return;
  std::filesystem::remove(file_of(self));
  Ring ring({1024, 1024});
  meet(ring);
  // Meanwhile MPI holds another message that its receiver has not asked for yet.
  const MPI_Comm communicator = ring.test.group.communicator().handle();
  constexpr int tag = 7;
  if (self % 2 == 0 && self + 1 < N) {
    check_mpi(MPI_Send(nullptr, 0, MPI_BYTE, self + 1, tag, communicator), "sending what is received later");
    ring.send(0);
    ring.out->finish();
    std::ofstream(file_of(self)) << "gone";
  }
  if (self % 2 == 1) {
    ring.in->begin(1);
    for (int ms = 0; ms < 20'000 && !std::filesystem::exists(file_of(self - 1)); ++ms) nap(1);
    CHECK(std::filesystem::exists(file_of(self - 1)));
    CHECK(ring.wrong(ring.in->next("the message"), 0) == 0);
    ring.in->done();
    check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, self - 1, tag, communicator, MPI_STATUS_IGNORE), "receiving it");
  }
  meet(ring);
  std::filesystem::remove(file_of(self));
}

TEST_CASE("RowReceiver: on the virtual clock a message that was sent while both compute costs nothing")
{
  constexpr Picoseconds us = 1'000'000, latency = 5 * us, occupied = 4 * us;  // 4,000 bytes at 1 GB/s
  constexpr std::int64_t work = 1'000'000;                                    // 1 ms at 1 GFLOP/s
  if (world().ranks() == 1) return;
  VirtualClock clock(parse_link("5us,1GB/s"), parse_flops("1GFLOP/s"));
  Ring ring({10, 100}, [&](GroupSetup& setup) { setup.clock = &clock; });
  if (world().rank() == 0) {
    for (const int i : {0, 1, 2}) {
      clock.charge_compute(work);
      ring.send(i);
    }
    CHECK(clock.now().since_start == 3000 * us);  // messages are sent while the rank computes
    ring.out->finish();
    CHECK(clock.now().since_start == 3000 * us + occupied);
  }
  if (world().rank() == 1) {
    ring.in->begin(3);
    for (const int i : {1, 2, 3}) {
      ring.in->next("rows");
      CHECK(clock.now().since_start == 1000 * i * us + latency + occupied);
      clock.charge_compute(work);  // the next message comes meanwhile
      ring.in->done();
    }
  }
  meet(ring);
}
