// Lesson 00: MPI from nothing
//
// Builds on:    nothing but C++
// New idea:     a job is N processes that run the same program and share no variables. They send each other messages,
//               and a send may have to wait for its receiver. Everything in the later lessons, collectives first, is
//               made of these messages.
// Memory:       the longest message, 4 MiB, and the vectors of broadcast and sum
// Traffic:      broadcast by hand: N-1 messages in ceil(log2 N) steps; sum by hand: 2 (N-1) messages per rank, each of
//               1/N of the vector
// Paper:        MPI: A Message-Passing Interface Standard 3.1, sections 3.4 (modes of sending) and 3.5 (order)
//
// Sample runs:  mpirun -np 2 build/lessons/00_mpi --show=deadlock
//               mpirun -np 4 build/lessons/00_mpi --show=order
//               mpirun -np 5 build/lessons/00_mpi --root=2
// Expect:       short sends end alone, long ones wait; broadcast and sum by hand equal to those of the library.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/messages/agreement.hpp"
#include "common/messages/communicator.hpp"
#include "common/messages/job_report.hpp"
#include "common/messages/program.hpp"
#include "common/program/report.hpp"
#include "lessons/00_mpi/deadlock.hpp"
#include "lessons/00_mpi/letters.hpp"
#include "lessons/00_mpi/neighbours.hpp"
#include "lessons/00_mpi/options.hpp"
#include "lessons/00_mpi/ranks.hpp"
#include "lessons/00_mpi/ring_sum.hpp"
#include "lessons/00_mpi/show.hpp"
#include "lessons/00_mpi/tree_broadcast.hpp"

namespace rankwise {
namespace {

/// Prints a line of each rank.
void print_ranks(MpiRun& run, const std::string& title, const std::string& own)
{
  std::vector<Line> lines;
  for (const std::string& line : gather_texts(Communicator::world(), own))
    lines.push_back({fmt::format("rank {}", lines.size()), "", "", line});
  run.report.block(title, lines);
}

// ---- Ranks and communicators -----------------------------------------------------------------------------------------

/// Each rank says who it is, and receives a number from the rank before it.
void show_ranks(MpiRun& run)
{
  int N = 0, r = 0;
  check_mpi(MPI_Comm_size(run.comm, &N), "asking for the number of ranks");
  check_mpi(MPI_Comm_rank(run.comm, &r), "asking for this rank");
  // The same statement on all ranks, but each has variables of its own.
  const double mine = 100 * r;
  double arrived = -1;
  exchange_with_neighbours({&mine, 1}, {&arrived, 1}, run.comm);
  char machine[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  check_mpi(MPI_Get_processor_name(machine, &length), "asking for the name of the machine");
  const int previous = (r + N - 1) % N;
  print_ranks(run, "ranks", fmt::format("of {}; has {}, and {} from rank {}", N, mine, arrived, previous));
  run.report.check("from the previous rank", "100 (r-1)", fmt::format("{} ranks", N),
                   on_all_ranks(arrived == 100 * previous));
}

/// Even and odd ranks each get a communicator, in which they have other numbers.
void show_communicators(MpiRun& run)
{
  const int r = rank_in(run.comm);
  // All ranks call it; those with the same colour get a communicator, ordered by the key.
  const Communicator half = Communicator::world().split(/*color=*/r % 2, /*key=*/r);
  double sum = r;
  ring_sum({&sum, 1}, half.handle());  // its messages stay among these ranks
  print_ranks(run, "communicators: even ranks and odd ranks",
              fmt::format("is rank {} of {} {} ranks, whose sum is {}", half.rank(), half.ranks(),
                          r % 2 == 0 ? "even" : "odd", sum));
  double expected = 0;
  for (int other = r % 2; other < ranks_of(run.comm); other += 2) expected += other;
  run.report.check("sum within a communicator", "that of its ranks", "on all ranks", on_all_ranks(sum == expected));
}

// ---- Order -----------------------------------------------------------------------------------------------------------

/// The letters of rank r: r of them, of 1, 2, ... numbers.
std::vector<Letter> letters_of(int r)
{
  std::vector<Letter> letters;
  for (int i = 0; i < r; ++i)
    letters.push_back({r, 10 * r + i, std::vector<double>(static_cast<std::size_t>(i + 1), r)});
  return letters;
}

/// Rank 0 receives by tag what rank 1 sent in another order.
void show_order(MpiRun& run)
{
  if (!has_two_ranks(run, "order")) return;
  const int r = rank_in(run.comm);
  // Tags choose; and of two messages with the same tag, the one that was sent first is received first.
  const int sent_tags[] = {7, 8, 7}, asked_tags[] = {8, 7, 7};
  const double numbers[] = {1, 2, 3};
  double received[3] = {};
  MPI_Request requests[3];
  for (int i = 0; i < 3 && r == 1; ++i)
    check_mpi(MPI_Isend(&numbers[i], 1, MPI_DOUBLE, 0, sent_tags[i], run.comm, &requests[i]), "sending with a tag");
  for (int i = 0; i < 3 && r == 0; ++i)
    check_mpi(MPI_Recv(&received[i], 1, MPI_DOUBLE, 1, asked_tags[i], run.comm, MPI_STATUS_IGNORE),
              "receiving by tag");
  if (r == 1) check_mpi(MPI_Waitall(3, requests, MPI_STATUSES_IGNORE), "waiting for the sends");
  const std::string order = fmt::format("{}", fmt::join(received, ", "));
  run.report.block("order: rank 1 sends 1, 2, 3 with tags 7, 8, 7",
                   {{"rank 0 asks for tags", fmt::format("{}", fmt::join(asked_tags, ", ")), "", ""},
                    {"and receives", order, "", ""}});
  run.report.check("order by tag", "2, 1, 3", order, on_all_ranks(r != 0 || order == "2, 1, 3"));
}

/// Rank 0 collects letters, whichever rank sends first.
void show_letters(MpiRun& run)
{
  const int N = ranks_of(run.comm), r = rank_in(run.comm);
  if (r != 0) send_letters(letters_of(r), 0, run.comm);
  const std::vector<Letter> letters = r == 0 ? collect_letters(run.comm) : std::vector<Letter>{};
  std::vector<Letter> expected;
  for (int other = 1; other < N; ++other)
    for (const Letter& letter : letters_of(other)) expected.push_back(letter);
  std::vector<Line> lines;
  for (const Letter& letter : letters)
    lines.push_back({fmt::format("from rank {}", letter.from), fmt::format("tag {}", letter.tag), "",
                     fmt::format("{} values: {}", letter.values.size(), fmt::join(letter.values, " "))});
  if (N > 1) run.report.block("letters: rank 0 learns senders, tags and sizes from the messages", lines);
  run.report.check("letters", expected.size(), letters.size(), on_all_ranks(r != 0 || letters == expected));
}

// ---- Collectives by hand ---------------------------------------------------------------------------------------------

/// Messages that this rank has sent to each rank since @p before.
std::vector<std::int64_t> sent_since(const std::vector<std::int64_t>& before)
{
  std::vector<std::int64_t> sent = messages_sent();
  for (std::size_t to = 0; to < sent.size(); ++to) sent[to] -= before[to];
  return sent;
}

/// The numbers of each rank, in the order of the ranks.
nlohmann::json rows_of_ranks(const std::vector<std::int64_t>& own)
{
  nlohmann::json rows;
  for (const std::string& row : gather_texts(Communicator::world(), json_text(own)))
    rows.push_back(parse_json(row));
  return rows;
}

/// "sends 1 to rank 1, 2 to rank 4".
std::string sends(const std::vector<std::int64_t>& sent)
{
  std::vector<std::string> parts;
  for (std::size_t to = 0; to < sent.size(); ++to)
    if (sent[to] > 0) parts.push_back(fmt::format("{} to rank {}", sent[to], to));
  return fmt::format("sends {}", parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, ", ")));
}

/// Values of a rank: i mod 9 + 1 times 10^(r mod 8), so that the digits of a sum show which ranks have been added.
std::vector<double> values_of(int rank, std::int64_t count)
{
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<double>(i % 9 + 1) * std::pow(10, rank % 8);
  return values;
}

/// Compares a broadcast made of messages with that of the library.
void show_broadcast(MpiRun& run)
{
  const int N = ranks_of(run.comm), r = rank_in(run.comm), root = run.options.root;
  std::vector<double> values = values_of(r, run.options.count), expected = values;
  const std::vector<std::int64_t> before = messages_sent();
  tree_broadcast(values, root, run.comm);
  const std::vector<std::int64_t> sent = sent_since(before);
  std::int64_t messages = std::accumulate(sent.begin(), sent.end(), std::int64_t{0});
  print_ranks(run, fmt::format("broadcast by hand, from rank {}", root), sends(sent));
  run.report.json()["broadcast"]["sent"] = rows_of_ranks(sent);
  check_mpi(MPI_Bcast(expected.data(), static_cast<int>(expected.size()), MPI_DOUBLE, root, run.comm),
            "broadcasting");
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &messages, 1, MPI_INT64_T, MPI_SUM, run.comm), "counting messages");
  run.report.check("broadcast = MPI_Bcast", "on all ranks", N, on_all_ranks(values == expected));
  run.report.check("messages of the broadcast", N - 1, messages, messages == N - 1);
}

/// Compares a sum made of messages with that of the library.
void show_sum(MpiRun& run)
{
  const int N = ranks_of(run.comm), r = rank_in(run.comm);
  std::vector<double> values = values_of(r, run.options.count), expected = values;
  const std::vector<std::int64_t> before = messages_sent();
  ring_sum(values, run.comm);
  const std::vector<std::int64_t> sent = sent_since(before);
  const std::int64_t messages = std::accumulate(sent.begin(), sent.end(), std::int64_t{0});
  const std::span<const double> first = std::span(values).first(std::min<std::size_t>(values.size(), 4));
  print_ranks(run, "sum by hand, around a ring",
              fmt::format("{}; its sum begins {}", sends(sent), fmt::join(first, " ")));
  run.report.json()["sum"]["sent"] = rows_of_ranks(sent);
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, expected.data(), static_cast<int>(expected.size()), MPI_DOUBLE, MPI_SUM,
                          run.comm),
            "summing");
  run.report.check("sum = MPI_Allreduce", "on all ranks", N, on_all_ranks(values == expected));
  run.report.check("messages of the sum", "2 (N-1) per rank", messages, on_all_ranks(messages == 2 * (N - 1)));
}

// ---- Run -------------------------------------------------------------------------------------------------------------

int run_parts(const MpiOptions& options, const Session& session)
{
  if (options.show == "hang") hang(MPI_COMM_WORLD);
  Report report(session.rank() == 0, options.report);
  begin_job(report, "00_mpi", session.ranks());
  if (const std::string given = options.table.table(); !given.empty()) report.comment(given);
  report.json()["layout"] = {{"dp", session.ranks()}, {"tp", 1}, {"pp", 1}};
  report.json()["options"] = options.table.json();
  MpiRun run{options, report};
  if (options.shows("ranks")) show_ranks(run);
  if (options.shows("communicators")) show_communicators(run);
  if (options.shows("deadlock")) show_deadlock(run);
  if (options.shows("order")) {
    show_order(run);
    show_letters(run);
  }
  if (options.shows("ping-pong")) show_ping_pong(run);
  if (options.shows("eager")) show_eager(run);
  if (options.shows("broadcast")) show_broadcast(run);
  if (options.shows("sum")) show_sum(run);
  return report.finish();
}

}  // namespace
}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  MpiOptions options;
  return run_program(
      argc, argv, options.table, [&](const Session& session) { check_options(options, session); },
      [&](Session& session) { return run_parts(options, session); });
}
