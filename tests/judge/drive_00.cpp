// The exercises of lesson 00: messages of MPI.

#include <algorithm>

#include "common/base/clock.hpp"
#include "common/messages/communicator.hpp"
#include "lessons/00_mpi/letters.hpp"
#include "lessons/00_mpi/neighbours.hpp"
#include "lessons/00_mpi/ring_sum.hpp"
#include "lessons/00_mpi/round_trip.hpp"
#include "lessons/00_mpi/tree_broadcast.hpp"
#include "tests/judge/driver.hpp"

namespace rankwise::judge {

namespace {

/// The communicator that a case is about: "all ranks", or with its ranks numbered backwards, or two halves.
Communicator communicator_of(const Json& name)
{
  Communicator all = Communicator::world();
  if (name == "all ranks") return all;
  const int color = name == "every other rank, numbered backwards" ? all.rank() % 2 : 0;
  return all.split(color, -all.rank());
}

/// n numbers of a rank, whose sums tell which ranks are in them: (1 + i mod 8) 16^r.
std::vector<double> values_of_rank(int rank, std::int64_t n)
{
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<double>(1 + i % 8) * static_cast<double>(std::int64_t{1} << (4 * rank)));
  return values;
}

/// 00.1: each rank's vector has another length.
const Exercise neighbours("00.1", [](const Json& in) -> Json {
  const Communicator comm = communicator_of(in["comm"]);
  const std::int64_t n = in["n"];
  const auto length = [&](int r) { return (r * 7 + n) % (n + 3); };
  const int N = comm.ranks();
  std::vector<double> sent = values_of_rank(comm.rank(), length(comm.rank()));
  std::vector<double> received(static_cast<std::size_t>(length((comm.rank() + N - 1) % N)), -1.0);
  exchange_with_neighbours(sent, received, comm.handle());
  return {{"received", received}, {"sent", sent}};
});

/// 00.2: ranks r and r + 1 are partners. The answer says whether the time covers most of the call.
const Exercise round_trip("00.2", [](const Json& in) -> Json {
  const Communicator comm = communicator_of(in["comm"]);
  const int partner = comm.rank() ^ 1;
  if (partner >= comm.ranks()) return Json::object();
  std::vector<std::byte> message(in["bytes"].get<std::size_t>());
  std::fill(message.begin(), message.end(), static_cast<std::byte>(comm.rank() + 1));
  const Stopwatch clock;
  const double time_s = round_trip_s(message, partner, comm.handle());
  const double share = time_s / clock.seconds();
  std::vector<int> bytes;
  for (const std::byte byte : message) bytes.push_back(static_cast<int>(byte));
  return {{"message", bytes},
          {"time is that of both messages", share > 0.75 && share <= 1.0},
          {"time is 0", time_s == 0}};
});

/// 00.3: one rank collects what the others send.
const Exercise letters("00.3", [](const Json& in) -> Json {
  const Communicator comm = communicator_of(in["comm"]);
  const int to = in["to"].get<int>() % comm.ranks();
  const std::int64_t seed = in["seed"];
  if (comm.rank() != to) {
    std::vector<Letter> mine;
    const std::int64_t number = (seed + 3 * comm.rank()) % 5;
    for (std::int64_t i = 0; i < number; ++i) {
      const std::int64_t size = i == 1 ? 0 : (seed * (i + 1) + comm.rank()) % 200;
      mine.push_back(
          {.tag = static_cast<int>((seed + 11 * (number - i)) % 50), .values = values_of_rank(comm.rank(), size)});
    }
    send_letters(mine, to, comm.handle());
    return Json::object();
  }
  Json collected = Json::array();
  for (const Letter& letter : collect_letters(comm.handle()))
    collected.push_back({{"from", letter.from}, {"tag", letter.tag}, {"values", letter.values}});
  return {{"letters", collected}};
});

/// 00.4: the broadcast along a tree.
const Exercise broadcast("00.4", [](const Json& in) -> Json {
  const Communicator comm = communicator_of(in["comm"]);
  std::vector<double> values = values_of_rank(comm.rank(), in["n"]);
  tree_broadcast(values, in["root"].get<int>() % comm.ranks(), comm.handle());
  return {{"values", values}};
});

/// 00.5: the sum around a ring.
const Exercise sum("00.5", [](const Json& in) -> Json {
  const Communicator comm = communicator_of(in["comm"]);
  std::vector<double> values = values_of_rank(comm.rank(), in["n"]);
  ring_sum(values, comm.handle());
  return {{"values", values}};
});

}  // namespace

}  // namespace rankwise::judge
