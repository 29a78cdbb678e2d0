// Correct programs pass under chaos testing; wrong ones fail, though they mostly succeed without it.

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/messages/layers/chaos_transport.hpp"
#include "common/program/time_ledger.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

constexpr std::uint32_t seeds[] = {1, 2, 3, 4, 5};

/// A group under chaos; without a seed, a plain one.
struct ChaoticGroup {
  explicit ChaoticGroup(std::optional<std::uint32_t> seed, Algorithm algorithm = Algorithm::ring,
                        int ranks_per_node = 0)
      : base(Algorithm::ring)
  {
    GroupSetup setup = base.setup;
    setup.algorithm = algorithm;
    setup.ranks_per_node = ranks_per_node;
    setup.chaos = seed.value_or(0);
    group = std::make_unique<Group>("chaotic", Communicator::world(), setup);
  }

  Transport& transport() { return group->transport(); }

  GroupForTest base;
  std::unique_ptr<Group> group;
};

/// Returns when a message for this rank has come in.
void await_message(const ChaoticGroup& group)
{
  for (int came = 0; came == 0;)
    check_mpi(
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, group.group->communicator().handle(), &came, MPI_STATUS_IGNORE),
        "looking for messages");
}

/// Small enough to be sent before the receiver asks for it.
struct Small {
  Tensor tensor() { return Tensor(std::span<float>(values), {4}); }
  std::vector<float> values{1, 2, 3, 4};
};

/// WRONG: rank 1 reads before it has waited. @return what it read.
float read_too_early(ChaoticGroup& group)
{
  Small values;
  if (group.transport().rank() == 0) group.transport().send(values.tensor(), 1);
  if (group.transport().rank() != 1) return 4;
  values.values = {0, 0, 0, 0};
  await_message(group);
  const Transfer transfer{Transfer::Direction::receive, values.tensor(), 0};
  const Ticket ticket = group.transport().start({&transfer, 1});
  const float read = values.values[3];
  group.transport().finish(ticket);
  REQUIRE(values.values == std::vector<float>{1, 2, 3, 4});
  return read;
}

/// WRONG: rank 0 changes what it sends before it has waited. @return what happened on this rank.
std::string overwrite_too_early(ChaoticGroup& group)
{
  Small values;
  if (group.transport().rank() == 1) {
    await_message(group);
    group.transport().receive(values.tensor(), 0);
    return values.values == std::vector<float>{1, 2, 3, 4} ? "as sent" : "rubbish";
  }
  if (group.transport().rank() != 0) return "as sent";
  const Transfer transfer{Transfer::Direction::send, values.tensor(), 1};
  const Ticket ticket = group.transport().start({&transfer, 1});
  values.values[2] = 99;
  try {
    group.transport().finish(ticket);
  } catch (const Error& error) {
    return error.what();
  }
  return "as sent";
}

/// WRONG: ranks 0 and 1 both send first. @return whether they finished in time; if not, their deadlock is resolved.
bool both_send_first(ChaoticGroup& group, std::chrono::milliseconds patience)
{
  const int r = group.transport().rank(), peer = 1 - r;
  if (r > 1) return true;
  Small sent, received{{0, 0, 0, 0}};
  std::atomic<bool> through = false;
  std::thread program([&] {
    group.transport().send(sent.tensor(), peer);
    group.transport().receive(received.tensor(), peer);
    through = true;
  });
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (!through && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));

  constexpr int outside = 0, gave_up = 1;  // tags
  const MPI_Comm comm = group.group->communicator().handle();
  const int own = through;
  int theirs = 0;
  check_mpi(
      MPI_Sendrecv(&own, 1, MPI_INT, peer, gave_up, &theirs, 1, MPI_INT, peer, gave_up, comm, MPI_STATUS_IGNORE),
      "asking the other one");
  if (own == 0 &&
      r == 0) {  // takes the message that nobody receives; rank 1 receives then, and sends its own again
    Small taken;
    check_mpi(MPI_Recv(taken.values.data(), 4, MPI_FLOAT, peer, outside, comm, MPI_STATUS_IGNORE), "helping");
  } else if (own == 0) {
    check_mpi(MPI_Send(sent.values.data(), 4, MPI_FLOAT, peer, outside, comm), "helping");
  }
  program.join();
  REQUIRE(own == theirs);
  REQUIRE(received.values == sent.values);
  return own != 0;
}

/// All collectives on n elements, held against plain loops.
void try_collectives(Group& group, std::int64_t n)
{
  const int N = group.ranks(), r = group.rank();
  const auto all_are = [&](Guarded<float>& values, auto&& expected) {
    bool same = values.intact();
    for (std::int64_t i = 0; i < n; ++i) same = same && values.at(i) == expected(i);
    return same;
  };
  Guarded<float> sum(n, r), scattered(n, r), copied(n, r), reduced(n, r);
  all_reduce_sum(sum.tensor(), group);
  REQUIRE(all_are(sum, [&](std::int64_t i) { return sum_at(N, i); }));
  reduce_scatter_sum(scattered.tensor(), group);
  all_gather(scattered.tensor(), group);
  REQUIRE(all_are(scattered, [&](std::int64_t i) { return sum_at(N, i); }));
  broadcast(copied.tensor(), N - 1, group);
  REQUIRE(all_are(copied, [&](std::int64_t i) { return value_at(N - 1, i); }));
  reduce_sum(reduced.tensor(), N - 1, group);
  if (r == N - 1) REQUIRE(all_are(reduced, [&](std::int64_t i) { return sum_at(N, i); }));
  Guarded<float> sent(N * n, r), blocks(N * n, r);
  all_to_all(sent.tensor(), blocks.tensor(), group);
  REQUIRE(blocks.intact());
  for (int q = 0; q < N; ++q)
    for (std::int64_t i = 0; i < n; ++i) REQUIRE(blocks.at(q * n + i) == value_at(q, r * n + i));
  barrier(group);
}

}  // namespace

TEST_CASE("ChaosTransport: collectives give the same results, with every algorithm")
{
  const int N = world().ranks();
  for (const std::uint32_t seed : seeds) {
    for (const auto& [name, algorithm] : algorithms()) {
      INFO(fmt::format("{} with seed {}", name, seed));
      ChaoticGroup group(seed, algorithm, algorithm == Algorithm::hierarchical && N % 2 == 0 ? 2 : 0);
      for (const std::int64_t n : {0, 1, 1001, 65537}) try_collectives(*group.group, n);
    }
  }
}

TEST_CASE("ChaosTransport: a rank that reads before it waits reads invalid values")
{
  if (world().ranks() == 1) return;
  ChaoticGroup plain(std::nullopt);
  REQUIRE(read_too_early(plain) == 4);
  for (const std::uint32_t seed : seeds) {
    ChaoticGroup group(seed);
    const float read = read_too_early(group);
    if (world().rank() == 1) REQUIRE(std::isnan(read));
  }
}

TEST_CASE("ChaosTransport: changing sent data before finish() is an Error")
{
  if (world().ranks() == 1) return;
  ChaoticGroup plain(std::nullopt);
  REQUIRE(overwrite_too_early(plain) == "as sent");
  for (const std::uint32_t seed : seeds) {
    ChaoticGroup group(seed);
    const std::string happened = overwrite_too_early(group);
    if (world().rank() == 0)
      REQUIRE_THAT(happened, Contains("rank 0 changed a message of 16 bytes to rank 1") && Contains("from byte "));
  }
}

TEST_CASE("ChaosTransport: ranks that all send before they receive deadlock")
{
  if (world().ranks() == 1) return;
  ChaoticGroup plain(std::nullopt);
  REQUIRE(both_send_first(plain, std::chrono::hours(1)));  // however long it takes
  for (const std::uint32_t seed : seeds) {
    ChaoticGroup group(seed);
    REQUIRE((both_send_first(group, std::chrono::milliseconds(200)) == (world().rank() > 1)));
  }
}

TEST_CASE("ChaosTransport: its own buffers count neither as the program's memory nor as traffic")
{
  ChaoticGroup group(1);
  GroupForTest plain(Algorithm::ring);
  Guarded<float> values(5000, world().rank());
  all_reduce_sum(values.tensor(), *group.group);
  all_reduce_sum(values.tensor(), plain.group);
  REQUIRE(group.base.traffic.of("chaotic") == plain.traffic.of("world"));
  REQUIRE(group.base.ledger.peak(Tier::device) == plain.ledger.peak(Tier::device));
}

TEST_CASE("chaos_delay: one of eight, up to two milliseconds, by seed, rank and number")
{
  using namespace std::chrono_literals;
  int late = 0, other_seed = 0, other_rank = 0;
  auto longest = 0ns;
  for (std::uint32_t count = 0; count < 8000; ++count) {
    const auto delay = chaos_delay(1, 3, count);
    late += delay > 0ns;
    other_seed += delay != chaos_delay(2, 3, count);
    other_rank += delay != chaos_delay(1, 4, count);
    longest = std::max(longest, delay);
    REQUIRE(delay >= 0ns);
    REQUIRE(delay == chaos_delay(1, 3, count));
  }
  REQUIRE(std::abs(late - 1000) < 100);  // three standard deviations
  REQUIRE(other_seed > 1500);
  REQUIRE(other_rank > 1500);
  REQUIRE((longest > 1990us && longest <= 2000us));
}

TEST_CASE("ChaosTransport: starts and finishes are late")
{
  ChaoticGroup group(1);
  const Stopwatch watch;
  for (int i = 0; i < 40; ++i) group.transport().finish(group.transport().start({}));
  double expected_s = 0;
  for (std::uint32_t count = 0; count < 80; ++count)
    expected_s += std::chrono::duration<double>(chaos_delay(1, world().rank(), count)).count();
  REQUIRE(expected_s > 0.002);
  REQUIRE(watch.seconds() >= expected_s);
}
