#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/program/report.hpp"
#include "lessons/02_collectives/fit.hpp"
#include "lessons/02_collectives/measure.hpp"

/// @file
/// The lesson's report: printed tables, checks, and entries of the JSON document.

namespace rankwise {

/// All measurements of a run.
struct Results {
  Problem problem;                 ///< the vectors
  int N = 1;                       ///< ranks
  std::vector<MessageTime> times;  ///< of single messages; empty for one rank
  Fit fit;                         ///< line fitted to them
  std::vector<Findings> all;       ///< in the order of the candidates

  /// Bytes of the whole vector.
  std::int64_t bytes() const { return problem.n * bytes_of(problem.type); }
};

/// Ratio of bus bandwidth to algorithm bandwidth: the fraction of the vector that a rank has to send, whatever the
/// algorithm. For an all-reduce it is 2 (N-1)/N: the sum of a shard needs the terms of the N-1 other ranks, and
/// each of them needs the sum. For each of its halves it is (N-1)/N, for broadcast and reduce 1, for a barrier or
/// one rank 0.
double bus_factor(std::string_view collective, int N);

/// Prints the table of steps of a candidate, if its messages were recorded.
void show_steps(Report& report, const Findings& findings, int N);

/// Block "traffic": traffic of the rank that sends most, beside its formula; `traffic` in the document.
/// Checks that traffic and scratch equal the formulas on every rank.
void show_traffic(Report& report, const Results& results);

/// Block "messages": times of single messages and the line fitted to them; `fit` in the document.
void show_fit(Report& report, const Results& results);

/// Blocks "time" and "bandwidth": measured times beside those of the model, and the derivation of a bus bandwidth.
/// Checks that formula and model agree for the naive all-reduce.
void show_time(Report& report, const Results& results);

/// Block "order of sums": differences between the all-reduces in the last bits. Checks that results are right and
/// the same on all ranks, that algorithms with the tree's order keep it, and that both rings give the same bits.
void show_sums(Report& report, const Results& results);

/// Adds `collectives` to the document.
void enter_findings(Report& report, const Results& results);

}  // namespace rankwise
