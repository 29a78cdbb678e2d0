#include "lessons/frame/finite.hpp"

#include <algorithm>
#include <cmath>

#include "common/messages/rehearsal/rehearsal.hpp"
#include "gpt2/run_report.hpp"

namespace rankwise {

namespace {

/// True if both are finite. In a rehearsal nothing is computed, and no loss is a mean over no tokens.
bool passes(double loss, double gradient_norm)
{
  return (std::isfinite(loss) && std::isfinite(gradient_norm)) || Rehearsal::current();
}

}  // namespace

void note_not_finite(std::optional<std::int64_t>& first, const Kernels& kernels, const Tensor& values,
                     std::int64_t begin)
{
  if (const auto at = kernels->first_not_finite(values)) first = std::min(first.value_or(begin + *at), begin + *at);
}

void check_finite(Run& run, std::int64_t step, double loss, double gradient_norm, const std::vector<Shard>& shards,
                  const std::vector<Tensor>& gradients, Group& group)
{
  run.checked = {loss, gradient_norm, run.schedule.at(step)};
  check_finite(step, loss, gradient_norm, run.kernels, shards, gradients, group);
}

void check_finite(std::int64_t step, double loss, double gradient_norm, const Kernels& kernels,
                  const std::vector<Shard>& shards, const std::vector<Tensor>& gradients, Group& group)
{
  if (passes(loss, gradient_norm)) return;
  const ParameterTable& table = shards.front().table;
  const auto first_of_own = [&] {
    std::optional<std::int64_t> first;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      note_not_finite(first, kernels, shards[i].parameters, shards[i].owned.first);
      note_not_finite(first, kernels, gradients[i], table.elements() + shards[i].owned.first);
    }
    return first;
  };
  check_finite(step, loss, gradient_norm, table, first_of_own, group);
}

void check_finite(std::int64_t step, double loss, double gradient_norm, const ParameterTable& table,
                  const std::function<std::optional<std::int64_t>()>& first_of_own, Group& group)
{
  if (passes(loss, gradient_norm)) return;
  const std::int64_t none = 2 * table.elements();
  const std::vector<std::int64_t> of_all = all_gather(first_of_own().value_or(none), group);
  const std::int64_t first = *std::min_element(of_all.begin(), of_all.end());
  end_not_finite(step, loss, gradient_norm, table, first == none ? std::nullopt : std::optional(first));
}

}  // namespace rankwise
