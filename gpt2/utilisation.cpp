#include "gpt2/utilisation.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/clock.hpp"
#include "common/base/json.hpp"

namespace rankwise {

namespace {

/// Mean number of keys that a query sees.
double visible_keys(const Mask& mask, std::int64_t T)
{
  std::int64_t all = 0;
  for (std::int64_t query = 0; query < T; ++query) all += mask.visible_keys(query, T);
  return static_cast<double>(all) / static_cast<double>(T);
}

/// Operations of the forward pass of all blocks.
double blocks_forward(const ModelConfig& config, std::int64_t tokens, std::int64_t T)
{
  double sum = 0;
  for (std::int64_t unit = 1; unit <= 2 * config.layers; ++unit) sum += unit_flops(config, unit, tokens, T);
  return sum;
}

}  // namespace

std::vector<FlopCount> flop_counts(const ModelConfig& config, std::int64_t tokens, std::int64_t T, bool recompute)
{
  const auto all = static_cast<double>(tokens), L = static_cast<double>(config.layers),
             C = static_cast<double>(config.channels), V = static_cast<double>(config.vocabulary),
             keys = static_cast<double>(T);
  const double model = step_flops(config, tokens, T, false);
  if (config.architecture == Architecture::bert) {
    const std::string formula = "3 forward passes of each unit";
    return {{"MFU", model, formula},
            {"HFU", step_flops(config, tokens, T, recompute), formula + (recompute ? ", 4 of each block" : "")}};
  }
  const double visible = model - 12 * L * C * (keys - visible_keys(config.mask, T)) * all;
  const double in_blocks = 72 * L * C * C * (1 + keys / (6 * C)) * all, in_head = 6 * V * C * all;

  std::vector<FlopCount> counts{
      {"MFU", model, "6 P + 12 L C T a token"},
      {"MFU, Korthikanti", in_blocks + in_head, "72 L C^2 (1 + T / 6C + V / 12 L C) a token"},
      {"MFU, visible", visible, fmt::format("6 P + 12 L C x {:g} keys a token", visible_keys(config.mask, T))}};
  if (!recompute) {
    counts.push_back({"HFU", model, "as MFU: nothing is computed twice"});
    return counts;
  }
  counts.push_back({"HFU", model + blocks_forward(config, tokens, T), "MFU's, and the blocks' forward pass again"});
  counts.push_back({"HFU, Megatron-LM", in_blocks * 4 / 3 + in_head, "96 L C^2 (1 + T / 6C + V / 16 L C) a token"});
  return counts;
}

double fastest_product(const Kernels& kernels, Stream& stream, const DeviceMemory& memory, DType type)
{
  constexpr int turns = 5;
  constexpr double least_turn_s = 0.05;
  const std::int64_t n = memory.device->kind() == DeviceKind::cpu ? 1024 : 4096;  // 12 and 200 MB in f32
  const Buffer a(memory, Category::workspace, type, {n, n}, "a matrix to measure");
  const Buffer b(memory, Category::workspace, type, {n, n}, "a matrix to measure");
  const Buffer c(memory, Category::workspace, type, {n, n}, "a matrix to measure");
  for (const Buffer* matrix : {&a, &b}) stream.zero(matrix->tensor());
  const auto multiply = [&] {
    kernels->matmul(Matrix::of(c.tensor(), n), Matrix::of(a.tensor(), n), Matrix::of(b.tensor(), n),
                    SumOrder::sequential(n));
    stream.synchronise();
  };

  multiply();  // a library's first product may take longer
  double best = 0;
  for (int turn = 0; turn < turns; ++turn) {
    std::int64_t products = 0;
    const Stopwatch clock;
    for (; products == 0 || clock.seconds() < least_turn_s; ++products) multiply();
    best = std::max(best, 2.0 * static_cast<double>(n * n * n * products) / clock.seconds());
  }
  return best;
}

void report_utilisation(Report& report, const std::vector<FlopCount>& counts, double step_s, double peak,
                        int devices, const std::string& source)
{
  std::vector<Line> lines{
      {"peak", fmt::format("{:.4g}", peak * 1e-12), "",
       fmt::format("TFLOP/s of {} {}; {}", devices, devices == 1 ? "device" : "devices", source)}};
  nlohmann::json json{{"peak_flops_per_s", peak}, {"source", source}, {"counts", nlohmann::json::array()}};
  for (const auto& [name, flops, formula] : counts) {
    const double rate = flops / step_s, share = rate / peak;
    lines.push_back({name, fmt::format("{:.1f}", 100 * share), "",
                     fmt::format("% of it: {:.4g} TFLOP/s, {:.4g} a device; {}", rate * 1e-12,
                                 rate * 1e-12 / devices, formula)});
    json["counts"].push_back({{"name", name}, {"flops", flops}, {"flops_per_s", rate}, {"share", share}});
  }
  report.block("utilisation", lines);
  report.json()["utilisation"] = json;
}

}  // namespace rankwise
