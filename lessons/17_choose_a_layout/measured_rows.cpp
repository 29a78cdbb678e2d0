#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <sstream>

#include <boost/tokenizer.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/plain_text.hpp"
#include "common/program/option_value.hpp"
#include "lessons/17_choose_a_layout/calibration.hpp"
#include "lessons/17_choose_a_layout/sizes.hpp"

namespace rankwise {

namespace {

/// The cells of a line; cells with commas have quotation marks around them.
std::vector<std::string> cells_of(const std::string& line)
{
  const boost::tokenizer cells(line, boost::escaped_list_separator<char>("", ",", "\""));
  std::vector<std::string> all;
  for (const std::string& cell : cells) all.emplace_back(trimmed(cell));
  return all;
}

/// One line of a file of measured steps.
class RowReader {
 public:
  RowReader(std::vector<std::string> names, std::string line, std::string where)
      : names_(std::move(names)), cells_(cells_of(line)), where_(std::move(where))
  {
    if (cells_.size() != names_.size())
      refuse(fmt::format("it has {} cells, where the first line has {}", cells_.size(), names_.size()));
  }

  /// The text in the first of these columns that the file has and that is not empty here; else empty.
  std::string text(std::initializer_list<const char*> columns) const
  {
    for (const char* column : columns) {
      const auto found = std::ranges::find(names_, column);
      if (found == names_.end()) continue;
      const std::string& cell = cells_[static_cast<std::size_t>(found - names_.begin())];
      if (!cell.empty()) return cell;
    }
    return "";
  }

  /// The number there; 0 if there is none.
  double number(std::initializer_list<const char*> columns) const
  {
    const std::string cell = text(columns);
    double value = 0;
    if (cell.empty()) return 0;
    if (!read_value(cell, value).empty() || value < 0)
      refuse(fmt::format("{} is \"{}\", which is not a number, 0 or more", fmt::join(columns, " or "), cell));
    return value;
  }

  /// The same as a whole number.
  std::int64_t count(std::initializer_list<const char*> columns, std::optional<std::int64_t> otherwise = {}) const
  {
    const double value = number(columns);
    if (value != std::floor(value) || value > 1e9)
      refuse(fmt::format("{} is not a whole number up to 10^9", fmt::join(columns, " or ")));
    if (value > 0) return static_cast<std::int64_t>(value);
    if (!otherwise) refuse(fmt::format("{} is missing", fmt::join(columns, " or ")));
    return *otherwise;
  }

  [[noreturn]] void refuse(const std::string& why) const
  {
    throw UserError(fmt::format("{} cannot be used: {}.", where_, why),
                    "Correct the file, or leave rows out with --only or --skip.");
  }

 private:
  std::vector<std::string> names_, cells_;
  std::string where_;
};

/// The model of a row: its sizes, or the preset with that number of parameters.
ModelConfig model_of(const RowReader& row, const RowOptions& options)
{
  const std::int64_t layers = row.count({"layers", "nlayers", "# layers"}, 0);
  if (layers == 0) {
    const double billions = row.number({"params_B"});
    for (const ModelConfig& one : planned_presets())
      if (std::abs(static_cast<double>(one.parameters()) / 1e9 / billions - 1) < 0.005) return one;
    row.refuse("it has neither layers nor the number of parameters of a preset");
  }
  return {"measured",
          layers,
          row.count({"heads", "attention heads"}, 32),
          row.count({"hidden", "hidden size"}),
          row.count({"seq", "sequence length"}, 1024),
          row.count({"vocab_padded", "vocab"}, options.vocabulary)};
}

/// What the words of a row say of recomputation and sharding, and the degrees.
PlannedLayout layout_of(const RowReader& row, const RowOptions& options)
{
  PlannedLayout layout;
  layout.tp = row.count({"tp", "tensor parallelism"});
  layout.pp = row.count({"pp", "pipeline parallelism"});
  layout.dp = row.count({"dp", "data parallelism"});
  layout.micro_batch = row.count({"micro_batch", "micro batch"});
  layout.chunks = row.count({"interleave_v"}, 1);
  const std::string words = row.text({"recompute"}) + " " + row.text({"row"});
  const std::string recompute = words == " " ? options.recompute : words;
  if (recompute.find("full") != std::string::npos) layout.recompute = Recompute::full;
  if (recompute.find("selective") != std::string::npos) layout.recompute = Recompute::selective;
  layout.sequence_parallel = words.find("sequence") != std::string::npos;
  if (!row.text({"recompute"}).empty() && layout.recompute == Recompute::none &&
      words.find("none") == std::string::npos)
    row.refuse(fmt::format("recompute is \"{}\", which has none of the words none, selective, full",
                           row.text({"recompute"})));
  layout.zero = static_cast<int>(row.count({"zero_stage"}, words.find("ZeRO-3") != std::string::npos ? 3 : 0));
  if (const std::string place = row.text({"offload"}); !place.empty()) layout.optimizer = OptimizerPlace::host;

  if (layout.dp == 1) layout.zero = 0;  // nothing is divided
  const std::int64_t gpus = row.count({"gpus", "# GPUs"}, layout.gpus());
  if (row.text({"flags"}).find("WORLD_MISMATCH") != std::string::npos) layout.pp = gpus / (layout.tp * layout.dp);
  if (layout.gpus() != gpus)
    row.refuse(fmt::format("tp={} x pp={} x dp={} are not its {} GPUs", layout.tp, layout.pp, layout.dp, gpus));
  return layout;
}

/// Measured seconds: as such, or from the operations per second that the papers give.
double seconds_of(const RowReader& row, const MeasuredRow& measured)
{
  if (const double ms = row.number({"iteration time (ms)"}); ms > 0) return ms / 1e3;
  if (const double s = row.number({"iter_s", "sec_per_iter", "sec_per_iter_mean"}); s > 0) return s;
  const double tflops = row.number({"tflops_per_gpu"});
  if (tflops <= 0) row.refuse("it has no time");
  return narayanan_flops(measured.job.model, measured.job.global_batch) /
         (tflops * 1e12 * static_cast<double>(measured.layout.gpus()));
}

/// Refuses a step in which each GPU did more operations than it can, even without recomputation.
void check_speed(const RowReader& row, const MeasuredRow& measured, double peak)
{
  if (peak == 0 || measured.one_layer) return;
  const double computed = 0.75 * narayanan_flops(measured.job.model, measured.job.global_batch);
  const double rate = computed / (measured.seconds * static_cast<double>(measured.layout.gpus()));
  if (rate > peak)
    row.refuse(fmt::format("{:.4g} s are {:.4g} TFLOP/s a GPU, which has {:.4g}", measured.seconds, rate / 1e12,
                           peak / 1e12));
}

MeasuredRow read_row(const RowReader& row, const std::string& line, const RowOptions& options)
{
  MeasuredRow measured;
  measured.text = line;
  measured.job.model = model_of(row, options);
  measured.job.system = options.system;
  measured.job.half_gradients = true;
  measured.job.slow_links = row.text({"flags"}).find("SLOW_REGIME") != std::string::npos;
  measured.layout = layout_of(row, options);
  measured.one_layer = measured.job.model.layers == 1;
  const PlannedLayout& l = measured.layout;
  const std::int64_t micro_batches = row.count({"pp_chunks_m", "m"}, 0);
  std::int64_t& G = measured.job.global_batch;
  G = micro_batches > 0 ? l.dp * l.micro_batch * micro_batches
                        : row.count({"global_batch", "global batch"}, l.dp * l.micro_batch);
  const System system = l.zero >= 2 ? System::deepspeed : options.system;
  if (const std::string why = obstacle(system, measured.job.model, l, G); !why.empty()) row.refuse(why);
  measured.seconds = seconds_of(row, measured);
  check_speed(row, measured, options.peak);
  return measured;
}

/// True if the options leave a line in.
bool wanted(const std::string& line, const RowOptions& options)
{
  for (const std::string& word : cells_of(options.skip))
    if (!word.empty() && line.find(word) != std::string::npos) return false;
  return line.find(options.only) != std::string::npos;
}

}  // namespace

std::vector<MeasuredRow> read_rows(const std::string& path, const RowOptions& options)
{
  std::istringstream file(
      whole_text(path, {.asked = path, .remedy = "Name a file of comma-separated values."}, 100'000'000));
  std::string line;
  const auto next_line = [&] {
    if (!std::getline(file, line)) return false;
    if (line.ends_with('\r')) line.pop_back();
    return true;
  };
  next_line();
  const std::vector<std::string> names = cells_of(line);
  std::vector<MeasuredRow> rows;
  for (int number = 2; next_line(); ++number)
    if (!line.empty() && wanted(line, options)) {
      const RowReader row(names, line, fmt::format("{}, line {}", path, number));
      if (std::ranges::find(rows, line, &MeasuredRow::text) != rows.end()) row.refuse("it is there twice");
      rows.push_back(read_row(row, line, options));
    }
  if (rows.empty())
    throw UserError(fmt::format("{} has no row to use.", path),
                    "It needs a line of names and rows of comma-separated values; see --only and --skip.");
  return rows;
}

}  // namespace rankwise
