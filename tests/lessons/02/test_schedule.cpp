// Lesson 02: replay of recorded messages, marked shards, and the line fitted to times.

#include <algorithm>
#include <numeric>

#include "common/base/error.hpp"
#include "lessons/02_collectives/schedule.hpp"
#include "lessons/02_collectives/vectors.hpp"
#include "lessons/frame/instruments/fit.hpp"
#include "tests/catch.hpp"

using namespace rankwise;
using LogEvent = MessageLog::Event;

namespace {

LogEvent start(Ticket ticket, std::vector<MessageLog::Message> messages)
{
  return {"world", ticket, true, std::move(messages)};
}
LogEvent finish(Ticket ticket)
{
  return {"world", ticket, false, {}};
}
MessageLog::Message send(int to, std::int64_t bytes = 1, std::string what = "")
{
  return {true, to, bytes, std::move(what)};
}
MessageLog::Message receive(int from, std::int64_t bytes = 1)
{
  return {false, from, bytes, ""};
}

}  // namespace

TEST_CASE("play: a message waits for what its sender has to receive first")
{
  const std::vector<std::vector<LogEvent>> chain{
      {start(0, {send(1, 10)}), finish(0)},
      {start(0, {receive(0, 10)}), finish(0), start(0, {send(2, 10)}), finish(0)},
      {start(0, {receive(1, 10)}), finish(0)}};
  const TransferSchedule schedule = play(chain, {2, 0.1});
  REQUIRE(schedule.messages.size() == 2);
  CHECK(schedule.messages[0].start_s == 0);
  CHECK(schedule.messages[1].start_s == Approx(3));
  CHECK(schedule.messages[1].from == 1);
  CHECK(schedule.end_s == Approx(6));
}

TEST_CASE("play: an exchange takes one step, two messages into one rank take two")
{
  const std::vector<std::vector<LogEvent>> exchange{{start(0, {receive(1), send(1)}), finish(0)},
                                                    {start(0, {receive(0), send(0)}), finish(0)}};
  CHECK(play(exchange, {1, 0}).end_s == 1);
  const std::vector<std::vector<LogEvent>> gather{{start(0, {receive(1), receive(2)}), finish(0)},
                                                  {start(0, {send(0)}), finish(0)},
                                                  {start(0, {send(0)}), finish(0)}};
  CHECK(play(gather, {1, 0}).end_s == 2);
}

TEST_CASE("play: a message that no rank sends is an error")
{
  CHECK_THROWS_AS(play({{start(0, {receive(1)}), finish(0)}, {}}, {1, 0}), Error);
}

TEST_CASE("describe_shards: which shards, and whose sum")
{
  std::vector<std::int64_t> two{marked_shard(1, 0) + marked_shard(1, 3), marked_shard(3, 0) + marked_shard(3, 3)};
  CHECK(describe_shards(Tensor(std::span(two), {2}), 4, true) == "1,3(0+3)");
  CHECK(describe_shards(Tensor(std::span(two), {2}), 4, false) == "1,3");
  CHECK(describe_shards(Tensor(std::span(two), {2}), 2, true) == "1,3(all)");
  std::vector<std::int64_t> run{marked_shard(0, 7), marked_shard(1, 7), marked_shard(2, 7)};
  CHECK(describe_shards(Tensor(std::span(run), {3}), 8, true) == "0..2(7)");
  std::vector<std::int64_t> twice{marked_shard(5, 2) + marked_shard(5, 2)};
  CHECK(describe_shards(Tensor(std::span(twice), {1}), 4, true) == "5(2+2)");
}

TEST_CASE("describe_blocks: whose block, for whom")
{
  std::vector<std::int64_t> packed{marked_shard(1, 0), marked_shard(2, 3), marked_shard(2, 3), marked_shard(0, 7)};
  CHECK(describe_blocks(Tensor(std::span(packed), {4})) == "01,32,70");
}

TEST_CASE("uneven_blocks: the block for a rank is as large as the one from it, and each rank sends n elements")
{
  for (const int N : {1, 2, 3, 4, 8})
    for (const std::int64_t n : {0, 1, 4, 1000, 1 << 30})
      for (int r = 0; r < N; ++r) {
        const std::vector<std::int64_t> own = uneven_blocks(n, N, r);
        CHECK(std::accumulate(own.begin(), own.end(), std::int64_t{0}) == n);
        for (int q = 0; q < N; ++q)
          CHECK(own[static_cast<std::size_t>(q)] == uneven_blocks(n, N, q)[static_cast<std::size_t>(r)]);
      }
  CHECK(uneven_blocks(1000, 4, 0) == std::vector<std::int64_t>{100, 200, 300, 400});
  CHECK(uneven_blocks(1000, 4, 3) == std::vector<std::int64_t>{400, 100, 200, 300});
}

TEST_CASE("step_table: a line a rank, a column a step")
{
  const std::vector<std::vector<LogEvent>> logs{
      {start(0, {send(1, 1, "a")}), finish(0)},
      {start(0, {receive(0)}), finish(0), start(1, {send(2, 1, "b")}), finish(1)},
      {start(0, {receive(1)}), finish(0)}};
  const std::vector<Line> lines = step_table(play(logs, {1, 0}), 3);
  REQUIRE(lines.size() == 4);
  CHECK(lines[1].note.starts_with("a -> 1"));
  CHECK(lines[2].note.find("b -> 2") == lines[0].note.find("step 1"));
}

TEST_CASE("fit_line: finds the line through the times, and their residual")
{
  std::vector<MessageTime> times;
  for (const std::int64_t bytes : {8, 1000, 50000, 4000000})
    times.push_back({bytes, 2e-6 + 0.5e-9 * static_cast<double>(bytes)});
  Fit fit = fit_line(times);
  CHECK(fit.line.alpha_s == Approx(2e-6));
  CHECK(fit.line.beta_s_per_byte == Approx(0.5e-9));
  CHECK(fit.residual < 1e-9);
  CHECK(describe_bandwidth(fit.line, times) == "2.00 GB/s");
  times[1].time_s *= 2;
  CHECK(fit_line(times).residual > 0.1);
}

TEST_CASE("fit_line: times that fall with the bytes, or shrink to less than nothing, give no negative term")
{
  const std::vector<MessageTime> falling_times{{8, 4e-3}, {1000, 2e-3}, {4000000, 1e-3}};
  const Fit falling = fit_line(falling_times);
  CHECK(falling.line.beta_s_per_byte == 0);
  CHECK(falling.line.alpha_s == Approx(1.75 / 1.3125 * 1e-3));  // sum of 1/t over sum of 1/t^2
  CHECK(describe_bandwidth(falling.line, falling_times) == "at least 4.00 GB/s");
  const Fit steep = fit_line(std::vector<MessageTime>{{1000, 1e-6}, {2000, 4e-6}, {4000, 16e-6}});
  CHECK(steep.line.alpha_s == 0);
  CHECK(steep.line.beta_s_per_byte == Approx(1.75 / 1.3125 * 1e-9));  // sum of b/t over sum of (b/t)^2
}

TEST_CASE("sum_of_ranks: both orders, of vectors that differ by rank and index")
{
  constexpr int N = 4;
  constexpr std::int64_t n = 5001;  // more than a block
  std::vector<float> by_rank(n), tree(n), each[N];
  for (int r = 0; r < N; ++r) {
    each[r].assign(n, 0);
    fill(Tensor(std::span(each[r]), {n}), r);
  }
  sum_of_ranks(Tensor(std::span(by_rank), {n}), Tensor(std::span(tree), {n}), N);
  for (std::size_t i = 0; i < n; ++i) {
    REQUIRE(by_rank[i] == ((each[0][i] + each[1][i]) + each[2][i]) + each[3][i]);
    REQUIRE(tree[i] == (each[0][i] + each[1][i]) + (each[2][i] + each[3][i]));
  }
  CHECK(each[0] != each[1]);
  CHECK(each[0][0] != each[0][1]);
  std::vector<float> part(5);  // a part of a vector, from any element on
  fill(Tensor(std::span(part), {5}), 1, 6);
  CHECK(std::equal(part.begin(), part.end(), each[1].begin() + 6));
}
