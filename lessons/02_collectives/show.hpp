#pragma once

#include <cstdint>
#include <vector>

#include "common/program/report.hpp"
#include "lessons/02_collectives/measure.hpp"
#include "lessons/frame/instruments/fit.hpp"

/// @file
/// The lesson's report: printed tables, checks, and entries of the JSON document.

namespace rankwise {

/// All measurements of a run.
struct Results {
  const CollectiveOptions& options;  ///< what was measured
  int N;                             ///< ranks
  std::vector<MessageTime> times{};  ///< one for each message; empty for one rank
  Fit fit{};                         ///< line fitted to them
  std::vector<Findings> all{};       ///< in the order of the candidates

  /// Bytes of the whole vector.
  std::int64_t bytes() const { return options.count * bytes_of(options.type); }
};

/// The rank that sends or reads the most bytes, the first of several.
std::size_t busiest(const std::vector<RankCost>& by_rank);

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
