// collect_letters() of lesson 00: senders, tags, sizes and order of unannounced letters.

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lessons/00_mpi/letters.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/00/communicators.hpp"
#include "tests/lessons/00/counted_calls.hpp"

using namespace rankwise;

namespace {

/// The letters of a rank: another number of them each, tags that fall and repeat, and sizes from none to beyond what MPI
/// keeps a copy of.
std::vector<Letter> letters_of(int rank)
{
  std::vector<Letter> letters;
  const int number = rank == 2 ? 0 : 3 + 2 * rank;
  for (int i = 0; i < number; ++i) {
    const std::size_t size =
        i % 4 == 1 ? 0 : static_cast<std::size_t>(i % 4 == 3 ? 20000 + rank : 10 * rank + i + 1);
    Letter letter{rank, (100 - 7 * i) % 40, std::vector<double>(size)};
    std::iota(letter.values.begin(), letter.values.end(), 1000.0 * rank + 100 * i);
    letters.push_back(letter);
  }
  return letters;
}

/// A letter in words.
std::string words(const std::vector<Letter>& letters, std::size_t i)
{
  if (i >= letters.size()) return "none";
  const Letter& letter = letters[i];
  return fmt::format("of rank {}, tag {}, {} values from {}", letter.from, letter.tag, letter.values.size(),
                     letter.values.empty() ? 0 : letter.values[0]);
}

/// The first difference between what was collected and what was sent, in a sentence; empty if there is none.
std::string wrong(const std::vector<Letter>& collected, int root, int N)
{
  std::vector<Letter> expected;
  for (int r = 0; r < N; ++r)
    for (const Letter& letter : letters_of(r))
      if (r != root) expected.push_back(letter);
  for (std::size_t i = 0; i < std::max(expected.size(), collected.size()); ++i)
    if (i >= collected.size() || i >= expected.size() || collected[i] != expected[i])
      return fmt::format("rank {}: letter {} of {} is {}; expected letter {} of {}: {}", root, i, collected.size(),
                         words(collected, i), i, expected.size(), words(expected, i));
  return "";
}

/// All ranks but one send, and that one collects.
/// @param first_late  whether low ranks send last; otherwise high ones do.
void test_collect(const Communicator& comm, int root, bool first_late)
{
  const int N = comm.ranks(), r = comm.rank();
  CountedCalls calls;
  if (r == root) {
    CHECK(wrong(collect_letters(comm.handle()), root, N) == "");
    CHECK(calls.sent.empty());
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * (first_late ? N - r : r)));
    send_letters(letters_of(r), root, comm.handle());
  }
  INFO("rank " << r << " of " << N);
  CHECK(fmt::format("{}", fmt::join(calls.forbidden, ", ")) == "");
  CHECK(all_received(calls, comm.handle()));
}

}  // namespace

TEST_CASE("collect_letters: has all letters by sender, in the order in which each sent them")
{
  in_communicators([](const Communicator& comm, const std::string& what) {
    for (int root = 0; root < comm.ranks(); ++root)
      for (const bool first_late : {true, false}) {
        INFO(what << ", to rank " << root << (first_late ? ", low ranks send last" : ", high ranks send last"));
        test_collect(comm, root, first_late);
      }
  });
}
