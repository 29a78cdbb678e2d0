#include "lessons/00_mpi/letters.hpp"

#include <algorithm>

#include "common/base/error.hpp"
#include "common/program/session.hpp"

namespace rankwise {

void send_letters(std::span<const Letter> letters, int to, MPI_Comm comm)
{
  for (const Letter& letter : letters)
    check_mpi(
        MPI_Send(letter.values.data(), static_cast<int>(letter.values.size()), MPI_DOUBLE, to, letter.tag, comm),
        "sending a letter");
  check_mpi(MPI_Send(nullptr, 0, MPI_DOUBLE, to, last_letter, comm), "sending the end of the letters");
}

std::vector<Letter> collect_letters(MPI_Comm comm)
{
  // BEGIN EXERCISE 00.3
  int others = 0;
  check_mpi(MPI_Comm_size(comm, &others), "asking for the number of ranks");
  --others;
  std::vector<Letter> letters;
  while (others > 0) {
    // The envelope of the next message, whichever it is: sender, tag and size.
    MPI_Status envelope;
    check_mpi(MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &envelope), "waiting for a letter");
    int count = 0;
    check_mpi(MPI_Get_count(&envelope, MPI_DOUBLE, &count), "asking for the length of a letter");
    // Now there is room for it. Sender and tag are given, so no other message can be received in its place.
    Letter letter{envelope.MPI_SOURCE, envelope.MPI_TAG, std::vector<double>(static_cast<std::size_t>(count))};
    check_mpi(MPI_Recv(letter.values.data(), count, MPI_DOUBLE, letter.from, letter.tag, comm, MPI_STATUS_IGNORE),
              "receiving a letter");
    if (letter.tag == last_letter)
      --others;
    else
      letters.push_back(std::move(letter));
  }
  std::stable_sort(letters.begin(), letters.end(),
                   [](const Letter& a, const Letter& b) { return a.from < b.from; });
  return letters;
  // END EXERCISE
}

}  // namespace rankwise
