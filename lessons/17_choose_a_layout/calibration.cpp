#include "lessons/17_choose_a_layout/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlopt.hpp>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "common/base/digest.hpp"
#include "common/base/json.hpp"

namespace rankwise {

double predicted(const MeasuredRow& row, const Machine& machine)
{
  return row.one_layer ? layer_time(row.job, row.layout, machine) : step_time(row.job, row.layout, machine).total();
}

std::vector<MeasuredRow> chosen_rows(std::vector<MeasuredRow> rows, std::int64_t count, const std::string& salt)
{
  const auto digest = [&](const MeasuredRow& row) {
    Sha256 sha;
    for (const std::string& text : {row.text, salt}) sha.update(std::as_bytes(std::span(text)));
    return sha.hex();
  };
  std::ranges::sort(rows, {}, digest);
  rows.resize(std::min(rows.size(), static_cast<std::size_t>(count)));
  return rows;
}

// ---- Fit -------------------------------------------------------------------------------------------------------------

namespace {

constexpr double scale = 0.08, freedom = 3;  // of Student's distribution of errors

/// The machine whose constants are these numbers of spreads away from those of @p machine.
Machine moved(const Machine& machine, const std::vector<double>& spreads)
{
  Machine other = machine;
  for (std::size_t i = 0; i < spreads.size(); ++i) {
    const ConstantKind& kind = constant_kinds()[i];
    double& value = (other.constants.*kind.constant).value;
    value = kind.may_be_zero ? value + spreads[i] * kind.spread : value * std::exp(spreads[i] * kind.spread);
  }
  return other;
}

/// How many spreads a constant is away from the machine's.
double spreads_to(const Machine& machine, const ConstantKind& kind, double bound)
{
  const double value = machine.constants.*kind.constant;
  return (kind.may_be_zero ? bound - value : std::log(bound / value)) / kind.spread;
}

/// -2 ln of the posterior probability, up to a constant.
double misfit(const Machine& machine, const std::vector<MeasuredRow>& rows, const std::vector<double>& spreads)
{
  const Machine other = moved(machine, spreads);
  double sum = 0;
  for (const double away : spreads) sum += away * away;
  for (const MeasuredRow& row : rows) {
    const double error = std::log(predicted(row, other) / row.seconds) / scale;
    sum += (freedom + 1) * std::log1p(error * error / freedom);
  }
  return sum;
}

/// @p share of the values are at most this.
double percentile(std::vector<double> values, double share)
{
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at), above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

/// The rows that are not among @p chosen.
std::vector<MeasuredRow> others(const std::vector<MeasuredRow>& rows, const std::vector<MeasuredRow>& chosen)
{
  std::vector<MeasuredRow> rest;
  for (const MeasuredRow& row : rows)
    if (std::ranges::find(chosen, row.text, &MeasuredRow::text) == chosen.end()) rest.push_back(row);
  return rest;
}

}  // namespace

TimeConstants fitted(const Machine& machine, const std::vector<MeasuredRow>& rows)
{
  const std::size_t count = constant_kinds().size();
  nlopt::opt search(nlopt::LN_BOBYQA, static_cast<unsigned>(count));
  std::vector<double> least, most, spreads(count, 0);
  for (const ConstantKind& kind : constant_kinds()) {
    least.push_back(kind.may_be_zero || kind.least > 0 ? spreads_to(machine, kind, kind.least) : -HUGE_VAL);
    most.push_back(spreads_to(machine, kind, kind.most));
  }
  search.set_lower_bounds(least);
  search.set_upper_bounds(most);
  search.set_initial_step(0.5);
  search.set_xtol_abs(1e-4);
  search.set_maxeval(20000);
  std::pair fit(&machine, &rows);
  search.set_min_objective(
      [](const std::vector<double>& at, std::vector<double>&, void* data) {
        const auto& [expected, measured] = *static_cast<decltype(fit)*>(data);
        return misfit(*expected, *measured, at);
      },
      &fit);
  double value = 0;
  search.optimize(spreads, value);
  return moved(machine, spreads).constants;
}

// ---- Errors ----------------------------------------------------------------------------------------------------------

Errors errors_of(const std::vector<MeasuredRow>& rows, const Machine& machine)
{
  std::vector<double> errors;
  Errors all;
  for (const MeasuredRow& row : rows) {
    errors.push_back(std::abs(predicted(row, machine) / row.seconds - 1));
    all.mean += errors.back() / static_cast<double>(rows.size());
  }
  all.most_of = percentile(errors, 0.9);
  return all;
}

namespace {

std::string percent(double share)
{
  return fmt::format("{:.1f}", 100 * share);
}

/// Model and layout of a row, in words.
std::string name_of(const MeasuredRow& row)
{
  const ModelConfig& m = row.job.model;
  return fmt::format("{} x {}, {}", m.layers, m.channels, describe(row.layout, row.job.global_batch));
}

/// How much longer the step of the layout takes that the model prefers than the fastest measured one, for each model, batch
/// and number of GPUs that several layouts were measured of.
std::vector<double> regrets(const std::vector<MeasuredRow>& rows, const Machine& machine)
{
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  std::map<Key, std::vector<std::pair<double, double>>> groups;  // predicted, measured
  for (const MeasuredRow& row : rows) {
    const ModelConfig& m = row.job.model;
    groups[{m.layers, m.channels, m.context, row.job.global_batch, row.layout.gpus()}].emplace_back(
        predicted(row, machine), row.seconds);
  }
  std::vector<double> all;
  for (const auto& [key, times] : groups) {
    if (times.size() < 2) continue;
    const double fastest = std::ranges::min(times, {}, &std::pair<double, double>::second).second;
    all.push_back(std::ranges::min(times).second / fastest - 1);
  }
  return all;
}

}  // namespace

void report_errors(Report& report, const std::string& title, const std::vector<MeasuredRow>& rows,
                   const Machine& machine)
{
  std::vector<std::pair<double, const MeasuredRow*>> by_error;
  for (const MeasuredRow& row : rows) {
    const double time = predicted(row, machine);
    by_error.emplace_back(std::abs(time / row.seconds - 1), &row);
    report.json()["rows"].push_back({{"row", row.text},
                                     {"text", name_of(row)},
                                     {"measured_s", row.seconds},
                                     {"predicted_s", time},
                                     {"of", title}});
  }
  std::ranges::sort(by_error, std::greater());
  const Errors errors = errors_of(rows, machine);
  std::vector<Line> lines{{"mean", percent(errors.mean), "", "% of the measured time"},
                          {"90th percentile", percent(errors.most_of), "", "%"}};
  if (const std::vector<double> late = regrets(rows, machine); !late.empty()) {
    const auto near = std::ranges::count_if(late, [](double regret) { return regret <= 0.03; });
    lines.push_back(
        {"preferred layout", percent(percentile(late, 1)), "",
         fmt::format("% slower than the fastest at most; within 3 % in {} of {} cases", near, late.size())});
  }
  report.block(title, lines);
  for (std::size_t i = 0; i < std::min<std::size_t>(by_error.size(), 3); ++i) {
    const MeasuredRow& row = *by_error[i].second;
    report.comment(fmt::format("{:+.1f} %: {}, measured {:.4g} s",
                               100 * (predicted(row, machine) / row.seconds - 1), name_of(row), row.seconds));
  }
}

void calibrate(Report& report, Machine& machine, const std::vector<MeasuredRow>& rows, std::int64_t count)
{
  constexpr int draws = 20;
  std::vector<double> means, most;
  const Machine before = machine;
  for (int draw = 1; draw <= draws && std::ssize(rows) > count; ++draw) {
    const std::vector<MeasuredRow> chosen = chosen_rows(rows, count, std::to_string(draw));
    Machine other = before;
    other.constants = fitted(before, chosen);
    const Errors errors = errors_of(others(rows, chosen), other);
    means.push_back(errors.mean), most.push_back(errors.most_of);
  }
  const std::vector<MeasuredRow> chosen = chosen_rows(rows, count);
  machine.constants = fitted(before, chosen);

  std::vector<Line> lines;
  for (const ConstantKind& kind : constant_kinds()) {
    lines.push_back({kind.name, show_value(machine.constants.*kind.constant), "",
                     "before " + show_value(before.constants.*kind.constant)});
    report.json()["constants"][kind.name] = (machine.constants.*kind.constant).value;
  }
  report.block(fmt::format("constants fitted to {} of {} rows", chosen.size(), rows.size()), lines);
  if (std::ssize(rows) <= count) return;
  report_errors(report, "errors of the other rows", others(rows, chosen), machine);
  report.block(fmt::format("errors with {} other choices of {} rows", draws, count),
               {{"mean", percent(percentile(means, 0.5)), "", "% median"},
                {"90th percentile", percent(percentile(most, 0.5)), "", "% median"}});
  report.json()["draws"] = {{"mean", means}, {"most_of", most}};
}

}  // namespace rankwise
