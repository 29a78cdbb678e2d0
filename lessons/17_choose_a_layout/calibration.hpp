#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/program/report.hpp"
#include "lessons/17_choose_a_layout/layout.hpp"
#include "lessons/17_choose_a_layout/machine.hpp"
#include "lessons/17_choose_a_layout/time.hpp"

/// @file
/// Measured steps: the machine's constants are fitted to a few of them, and all others say how far off the model of time is.

namespace rankwise {

/// A measured step.
struct MeasuredRow {
  std::string text;        ///< the line of the file
  Job job;                 ///< model, batch, program
  PlannedLayout layout;    ///< how it was divided
  bool one_layer = false;  ///< whether one layer's two passes were measured, not a step
  double seconds = 0;      ///< measured
};

/// Which rows of a file are used, and what its columns do not say.
struct RowOptions {
  std::string only;                  ///< rows that contain this text; empty: all
  std::string skip;                  ///< words with commas between; rows that contain one of them are left out
  std::string recompute = "none";    ///< that of rows without this column
  std::int64_t vocabulary = 51200;   ///< the same
  System system = System::megatron;  ///< whose program was measured
  double peak = 0;                   ///< FLOP/s of a GPU, which no row exceeds; 0: not known
};

/// Reads a table of comma-separated values with a line of names. The columns may be called as in the tables that
/// docs/planner.md names.
/// @throws UserError  with file and line for a row that cannot be: a number that is none, degrees whose product is not the
///                    number of GPUs, a batch that is not divided, a step faster than the peak.
std::vector<MeasuredRow> read_rows(const std::string& path, const RowOptions& options);

/// Seconds of a row by the model of time.
double predicted(const MeasuredRow& row, const Machine& machine);

/// Picks calibration rows: those whose text and @p salt hash lowest (SHA-256).
std::vector<MeasuredRow> chosen_rows(std::vector<MeasuredRow> rows, std::int64_t count,
                                     const std::string& salt = "");

/// The constants with which the model is closest to the rows: the largest posterior probability, where the machine's
/// constants are expected within the spreads of constant_kinds(), and the logarithm of predicted over measured time has
/// Student's distribution with 3 degrees of freedom and a scale of 8 %: a row measured on a bad day does not decide.
TimeConstants fitted(const Machine& machine, const std::vector<MeasuredRow>& rows);

/// Errors of predictions.
struct Errors {
  double mean = 0;     ///< mean of |predicted / measured - 1|
  double most_of = 0;  ///< its 90th percentile
};
/// The errors of some rows.
Errors errors_of(const std::vector<MeasuredRow>& rows, const Machine& machine);

/// Fits the machine's constants to @p count of the rows and prints them, and the errors of all other rows: the fit's, and
/// the median over 20 other choices of rows.
void calibrate(Report& report, Machine& machine, const std::vector<MeasuredRow>& rows, std::int64_t count);

/// Prints the errors of rows, with the worst; and how much slower the layouts are that the model prefers than the fastest
/// measured ones of the same model, batch and number of GPUs. Enters `rows` in the document.
void report_errors(Report& report, const std::string& title, const std::vector<MeasuredRow>& rows,
                   const Machine& machine);

}  // namespace rankwise
