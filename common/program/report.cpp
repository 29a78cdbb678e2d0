#include "common/program/report.hpp"

#include <algorithm>
#include <cerrno>
#include <unistd.h>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/files/output_file.hpp"
#include "common/program/terminal.hpp"

namespace rankwise {

namespace {

constexpr std::size_t narrowest_column = 9;

std::size_t width_of(const Column& column)
{
  return std::max({column.name.size(), column.unit.size(), narrowest_column});
}

/// The text with the words PASS and FAIL in green and red where they begin a line of a block.
std::string coloured(std::string text)
{
  for (const std::string word : {"\n  PASS", "\n  FAIL"})
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size())
      text.replace(at, word.size(),
                   fmt::format("\n\033[{}m{}\033[0m", word == "\n  PASS" ? 32 : 31, word.substr(1)));
  return text;
}

}  // namespace

std::string CheckedValue::text() const
{
  if (const auto* text = std::get_if<std::string>(&value_)) return *text;
  if (const auto* number = std::get_if<double>(&value_)) return fmt::format("{:.9g}", *number);
  return group_digits(std::get<std::int64_t>(value_));
}

nlohmann::json CheckedValue::json() const
{
  return std::visit([](const auto& value) { return nlohmann::json(value); }, value_);
}

Report::Report(bool print, std::string json_path, std::FILE* out)
    : print_(print),
      terminal_(out == stdout && on_terminal(STDOUT_FILENO)),
      colour_(out == stdout && wants_colour()),
      json_path_(std::move(json_path)),
      out_(out),
      json_(std::make_unique<nlohmann::json>())
{
}

Report::~Report() = default;

void Report::print(const std::string& text)
{
  if (!print_ || terminal_is_gone_) return;
  bar_.clear();
  // One stream for the text and the picture that it replaces, since a launcher passes two of them on in any order.
  const bool with_picture = terminal_ && drawn_below_cursor;
  std::FILE* const out = with_picture ? stderr : out_;
  const std::string shown = colour_ ? coloured(printable(text)) : printable(text);
  const bool printed = draw_text(out, with_picture ? std::string(clear_picture) + shown : shown);
  terminal_is_gone_ = !printed && terminal_ && errno == EIO;  // a run that SIGHUP stops has to save all the same
  check_system(printed || terminal_is_gone_, "print the report");
}

void Report::comment(std::string_view text)
{
  std::string lines;
  for (const std::string& line : split(std::string(text), '\n')) lines += fmt::format("# {}\n", line);
  print(lines);
}

void Report::columns(std::vector<Column> columns)
{
  columns_ = std::move(columns);
  std::string names = "#", units = "#";
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    // The first column is one character narrower, for the "#".
    const std::size_t width = width_of(columns_[i]) - (i == 0 ? 1 : 0);
    names += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", columns_[i].name, width);
    units += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", columns_[i].unit, width);
  }
  print(names + "\n" + units + "\n");
}

void Report::row(const std::vector<double>& values)
{
  rankwise::check(values.size() == columns_.size(),
                  "a row of the report has a different number of columns than the header");
  std::string line;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string text = fmt::format(fmt::runtime(columns_[i].format), values[i]);
    line += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", text, width_of(columns_[i]));
  }
  print(line + "\n");
}

void Report::progress(std::int64_t done, std::int64_t total, const std::string& note)
{
  if (print_) bar_.show(done, total, note);
}

void Report::block(std::string_view title, const std::vector<Line>& lines)
{
  std::size_t label_width = 0, measured_width = 0, formula_width = 0;
  for (const Line& line : lines) {
    label_width = std::max(label_width, line.label.size());
    measured_width = std::max(measured_width, line.measured.size());
    formula_width = std::max(formula_width, line.formula.size());
  }
  std::string text = fmt::format("\n{}\n", title);
  for (const Line& line : lines) {
    std::string out = fmt::format("  {:<{}}  {:>{}}", line.label, label_width, line.measured, measured_width);
    if (formula_width > 0)
      out += fmt::format("  {} {:<{}}", line.formula.empty() ? " " : "=", line.formula, formula_width);
    out += "  " + line.note;
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  }
  print(text);
}

void Report::check(const std::string& name, const CheckedValue& expected, const CheckedValue& measured, bool pass)
{
  checks_.push_back({name, expected, measured, pass});
}

void Report::write(bool finished)
{
  json()["finished"] = finished;
  if (print_ && !json_path_.empty()) write_file(json_path_, json_text(*json_, 2) + "\n");
}

void Report::write_so_far()
{
  if (!is_stream(json_path_)) write(false);  // a pipe gets one document
}

int Report::finish()
{
  bool all_pass = true;
  std::vector<Line> lines;
  nlohmann::json& checks = json()["checks"] = nlohmann::json::array();
  for (const Check& check : checks_) {
    all_pass = all_pass && check.pass;
    lines.push_back({fmt::format("{}  {}", check.pass ? "PASS" : "FAIL", check.name), check.measured.text(), "",
                     "expected " + check.expected.text()});
    checks.push_back({{"name", check.name},
                      {"expected", check.expected.json()},
                      {"measured", check.measured.json()},
                      {"pass", check.pass}});
  }
  if (!lines.empty()) block("checks", lines);
  write(true);
  return all_pass ? exit_success : exit_failure;
}

}  // namespace rankwise
