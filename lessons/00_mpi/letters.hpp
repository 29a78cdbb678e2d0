#pragma once

#include <mpi.h>
#include <span>
#include <vector>

/// @file
/// Letters: messages of which the receiver knows neither sender, nor size, nor number in advance.

namespace rankwise {

/// A message and what its envelope says.
struct Letter {
  int from = -1;                 ///< rank of the sender; -1 before it is sent
  int tag = 0;                   ///< what it is about, 0 <= tag < last_letter
  std::vector<double> values{};  ///< any number of them, also none

  /// Same sender, tag and values.
  friend bool operator==(const Letter&, const Letter&) = default;
};

/// Tag of an empty message that a rank sends after its last letter.
constexpr int last_letter = 32767;

/// Sends letters to a rank that collects, in their order, and then the empty message with the tag `last_letter`.
/// @param letters  any number; their `from` is not looked at.
/// @param to       a rank of @p comm.
/// @failure  an MPI error ends the whole job with rank, file and line.
void send_letters(std::span<const Letter> letters, int to, MPI_Comm comm);

/// Receives all letters that the other ranks send to this one by send_letters(), in whatever order they arrive.
///
/// One rank of @p comm makes this call, and each of the others calls send_letters() with it. How many letters each
/// sends, and how long they are, this rank learns from the messages alone. Messages of one sender do not overtake
/// each other, so after `last_letter` no more arrive from that rank.
///
/// @param comm  N >= 1 ranks.
/// @return   the letters ordered by sender; those of one sender in the order in which they were sent.
/// @failure  an MPI error ends the whole job with rank, file and line.
std::vector<Letter> collect_letters(MPI_Comm comm);

}  // namespace rankwise
