#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/program/report.hpp"
#include "lessons/02_collectives/fit.hpp"
#include "lessons/02_collectives/measure.hpp"

/// @file
/// What the lesson prints of its findings, checks, and enters in the document.

namespace rankwise {

/// All that was found, and what of.
struct Results {
  Problem problem;                 ///< the vectors
  int N = 1;                       ///< ranks
  std::vector<MessageTime> times;  ///< of single messages; none for one rank
  Fit fit;                         ///< the line through them
  std::vector<Findings> all;       ///< in the order of the candidates

  /// Bytes of the whole vector.
  std::int64_t bytes() const { return problem.n * bytes_of(problem.type); }
};

/// The part of a vector that some rank has to send, whatever the algorithm; it makes bus bandwidth of algorithm
/// bandwidth. all-reduce: 2 (N-1)/N, since the sum of a shard needs what the N-1 other ranks have of it, and they need
/// the sum. Its halves: (N-1)/N each. broadcast and reduce: 1. A barrier, and one rank alone: 0.
double bus_factor(std::string_view collective, int N);

/// Table of steps: who sends what to whom; of a candidate whose messages were recorded.
void show_steps(Report& report, const Findings& findings, int N);

/// Block "traffic": what the rank that sends most has sent, beside its formula; `traffic` in the document.
/// Checks that traffic and scratch are the formulas' on every rank.
void show_traffic(Report& report, const Results& results);

/// Block "messages": single messages and the line through them; `fit` in the document.
void show_fit(Report& report, const Results& results);

/// Blocks "time" and "bandwidth": times beside those of the model, and how bus bandwidth follows from one of them.
/// Checks that the formula of the naive all-reduce is what the model says.
void show_time(Report& report, const Results& results);

/// Block "order of sums": how the all-reduces differ in their last bits. Checks that results are right and the same on
/// all ranks, that those which promise the tree's order keep it, and that both rings have the same bits.
void show_sums(Report& report, const Results& results);

/// Enters `collectives` in the document.
void enter_findings(Report& report, const Results& results);

}  // namespace rankwise
