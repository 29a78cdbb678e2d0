#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/program/progress_bar.hpp"

/// @file
/// The report of a run: on standard output for people, and as one JSON document for scripts.

namespace rankwise {

/// One column of the table of steps.
struct Column {
  std::string name;    ///< as "loss"
  std::string unit;    ///< as "nats" or "s"; "-" for a plain number
  std::string format;  ///< fmt's format of a value, as "{:.6f}"; "{:.0f}" for whole numbers
};

/// One line of a block.
struct Line {
  std::string label;     ///< as "parameters"
  std::string measured;  ///< with its unit
  std::string formula;   ///< expected value, as "4 P = 882,176"; may be empty
  std::string note;      ///< may be empty
};

/// An expected or measured value of a check: a number or a text.
class CheckedValue {
 public:
  /// A whole number.
  CheckedValue(std::integral auto number) : value_(static_cast<std::int64_t>(number)) {}
  /// Any other number.
  CheckedValue(double number) : value_(number) {}
  /// A text.
  CheckedValue(std::string text) : value_(std::move(text)) {}
  /// A text.
  CheckedValue(const char* text) : value_(text) {}

  /// For people: whole numbers with digits in groups of three.
  std::string text() const;
  /// For the document.
  nlohmann::json json() const;

 private:
  std::variant<std::int64_t, double, std::string> value_;
};

/// The report of one run. While rank 0 draws on the terminal that its standard output reaches (drawn_below_cursor), it is
/// printed there by standard error. Rank 0 prints and writes; on the other ranks the same calls print nothing.
class Report {
 public:
  /// @param print      true if this rank prints and writes: rank 0.
  /// @param json_path  file to which finish() writes the JSON document; empty: none.
  /// @param out        stream to print to.
  Report(bool print, std::string json_path, std::FILE* out = stdout);
  ~Report();

  /// From now on this rank prints and writes, or no more: its number has changed, since ranks have died.
  void print_here(bool print) { print_ = print; }

  /// Prints @p text with "# " before each of its lines.
  void comment(std::string_view text);

  /// Begins the table of steps: the row of names and the row of units, both after "#".
  void columns(std::vector<Column> columns);

  /// Prints one row of the table: one number per column.
  void row(const std::vector<double>& values);

  /// Shows a progress bar and a note on standard error if that is a terminal; the next output replaces it.
  void progress(std::int64_t done, std::int64_t total, const std::string& note);

  /// Prints a titled block of aligned lines: "label  measured  = formula  note".
  void block(std::string_view title, const std::vector<Line>& lines);

  /// Adds a check to the block "checks". The caller decides whether it passed, the same on all ranks.
  /// @param name      the claim.
  /// @param pass      true if the check passed.
  void check(const std::string& name, const CheckedValue& expected, const CheckedValue& measured, bool pass);

  /// The document; the caller fills it in.
  nlohmann::json& json() { return *json_; }

  /// Writes the document so far, with `finished` false, so that it exists even if the run is killed.
  /// @failure  Error when the document cannot be written.
  void write_so_far();

  /// Ends the report: prints the block "checks", adds `checks` to the document and writes it.
  /// @return  exit_success if all checks passed, else exit_failure; on every rank that added the checks.
  /// @failure  Error when the document cannot be written.
  int finish();

 private:
  void print(const std::string& text);
  void write(bool finished);

  /// One claim and its result.
  struct Check {
    std::string name;
    CheckedValue expected, measured;
    bool pass;
  };

  bool print_, terminal_, colour_, terminal_is_gone_ = false;
  std::string json_path_;
  std::FILE* out_;
  ProgressBar bar_{"steps"};
  std::vector<Column> columns_;
  std::vector<Check> checks_;
  std::unique_ptr<nlohmann::json> json_;
};

}  // namespace rankwise
