#include "lessons/17_choose_a_layout/layout.hpp"

#include <utility>

#include <fmt/format.h>

namespace rankwise {

std::string name_of(Recompute recompute)
{
  return recompute == Recompute::none ? "none" : recompute == Recompute::selective ? "selective" : "full";
}

std::string name_of(OptimizerPlace place)
{
  return place == OptimizerPlace::device ? "device" : place == OptimizerPlace::host ? "host" : "disk";
}

std::string name_of(System system)
{
  return system == System::rankwise ? "rankwise" : system == System::megatron ? "megatron" : "deepspeed";
}

std::string describe(const PlannedLayout& l, std::int64_t global_batch)
{
  std::string text = fmt::format("dp={} tp={} pp={}", l.dp, l.tp, l.pp);
  if (l.cp > 1) text += fmt::format(" cp={}", l.cp);
  if (l.ep > 1) text += fmt::format(" ep={}", l.ep);
  text += fmt::format(", {} micro-batch{} of {}", l.micro_batches(global_batch),
                      l.micro_batches(global_batch) == 1 ? "" : "es", l.micro_batch);
  if (l.chunks > 1) text += fmt::format(", {} stages a rank", l.chunks);
  if (l.recompute != Recompute::none) text += fmt::format(", {} recomputation", name_of(l.recompute));
  if (l.sequence_parallel) text += ", sequence parallel";
  if (l.zero > 0) text += fmt::format(", ZeRO-{}", l.zero);
  if (l.optimizer != OptimizerPlace::device) text += fmt::format(", optimizer on the {}", name_of(l.optimizer));
  return text;
}

std::string obstacle(System system, const ModelConfig& model, const PlannedLayout& l, std::int64_t global_batch)
{
  const auto divides = [](std::int64_t part, std::int64_t whole) { return part > 0 && whole % part == 0; };
  if (!divides(l.tp, model.heads)) return fmt::format("tp={} does not divide the {} heads", l.tp, model.heads);
  if (!divides(l.pp * l.chunks, model.layers))
    return fmt::format("pp={} with {} stages a rank does not divide the {} layers", l.pp, l.chunks, model.layers);
  if (!divides(l.dp * l.micro_batch, global_batch))
    return fmt::format("dp={} replicas with micro-batches of {} do not divide the global batch of {}", l.dp,
                       l.micro_batch, global_batch);
  if (l.chunks > 1 && (l.pp == 1 || l.micro_batches(global_batch) % l.pp != 0))
    return fmt::format("interleaved stages need a pipeline, and micro-batches that pp={} divides", l.pp);
  if (l.sequence_parallel && (l.tp == 1 || model.context % (l.tp * l.cp) != 0))
    return "sequence parallelism needs tp > 1, and a sequence that tp divides";
  if (l.zero > 0 && l.dp == 1) return "ZeRO needs replicas";
  if (l.zero >= 2 && l.pp > 1) return "ZeRO-2 and ZeRO-3 do not go with a pipeline";
  if (l.cp > 1 && (system != System::rankwise || model.context % (2 * l.cp) != 0))
    return "only the lessons have cp, and it divides a sequence into 2 cp runs";
  if (system == System::megatron && l.zero > 1) return "Megatron-LM's distributed optimizer is ZeRO-1";
  const bool offloads = l.optimizer != OptimizerPlace::device;
  if (system == System::megatron && offloads) return "Megatron-LM keeps its optimizer on the device";
  if (system == System::deepspeed && offloads && l.zero == 0) return "DeepSpeed offloads with ZeRO";
  if (!divides(l.ep, l.dp) || !divides(l.ep, model.experts.count))
    return fmt::format("ep={} does not divide dp={} and {} experts", l.ep, l.dp, model.experts.count);
  if (model.experts.count > 1 && (system != System::rankwise || l.zero >= 2 || l.recompute != Recompute::none))
    return "experts are known of lesson 16 only, which has ZeRO-1 and no recomputation for them";
  if (system == System::rankwise && l.recompute == Recompute::selective)
    return "the lessons recompute whole blocks or nothing";
  if (system == System::rankwise && offloads && l.zero != 3) return "the lessons offload with ZeRO-3";
  if (system == System::rankwise && l.zero >= 2 && l.cp > 1) return "the lessons have ZeRO-2 and ZeRO-3 without cp";
  return "";
}

namespace {

/// The divisors of n, the given one only if there is one.
std::vector<std::int64_t> choices(std::int64_t given, std::int64_t n)
{
  if (given > 0) return {given};
  std::vector<std::int64_t> all;
  for (std::int64_t i = 1; i <= n; ++i)
    if (n % i == 0) all.push_back(i);
  return all;
}

/// The values whose name is asked for: all of them with "search".
template <class T>
std::vector<T> choices(const std::string& asked, const std::vector<std::pair<std::string, T>>& values)
{
  std::vector<T> all;
  for (const auto& [name, value] : values)
    if (asked == "search" || asked == name) all.push_back(value);
  return all;
}

}  // namespace

std::vector<PlannedLayout> all_layouts(System system, const ModelConfig& model, const LayoutWishes& wishes,
                                       std::int64_t gpus, std::int64_t global_batch, std::int64_t node,
                                       std::string* first_obstacle)
{
  const auto recomputes = choices<Recompute>(
      wishes.recompute,
      {{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}});
  const auto zeros = choices<int>(wishes.zero, {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}});
  const auto sequence_parallel = choices<bool>(wishes.sequence_parallel, {{"off", false}, {"on", true}});
  const auto places = choices<OptimizerPlace>(
      wishes.optimizer,
      {{"device", OptimizerPlace::device}, {"host", OptimizerPlace::host}, {"disk", OptimizerPlace::disk}});
  const std::vector<std::int64_t> micro_batches =
      wishes.micro_batch > 0 ? std::vector{wishes.micro_batch} : std::vector<std::int64_t>{1, 2, 4, 8, 16};
  std::string why = fmt::format("the degrees do not divide {} GPUs", gpus);
  bool refused = false;  // a layout with these degrees
  std::vector<PlannedLayout> all;
  PlannedLayout l;
  const auto add_all = [&] {  // with everything but the degrees
    for (const std::int64_t micro_batch : micro_batches) {
      l.micro_batch = micro_batch;
      for (const std::int64_t chunks : choices(wishes.chunks, l.pp == 1 ? 1 : model.layers / l.pp))
        for (const Recompute recompute : recomputes)
          for (const int zero : zeros)
            for (const bool parallel : sequence_parallel)
              for (const OptimizerPlace place : places) {
                l.chunks = chunks, l.recompute = recompute, l.zero = zero;
                l.sequence_parallel = parallel, l.optimizer = place;
                for (const std::int64_t ep : choices(wishes.ep, model.experts.count)) {
                  l.ep = ep;
                  const std::string found = obstacle(system, model, l, global_batch);
                  if (found.empty()) all.push_back(l);
                  if (!found.empty() && !std::exchange(refused, true)) why = found;
                }
              }
    }
  };
  for (const std::int64_t cp : choices(wishes.cp, gpus))
    for (const std::int64_t tp : choices(wishes.tp, gpus))
      for (const std::int64_t pp : choices(wishes.pp, gpus)) {
        l.cp = cp, l.tp = tp, l.pp = pp, l.dp = gpus / (cp * tp * pp);
        const bool fits = l.gpus() == gpus && (wishes.dp == 0 || wishes.dp == l.dp);
        const bool in_a_node = node % tp == 0;  // else some groups would be on two nodes
        if (fits && l.dp <= global_batch && pp <= model.layers && (wishes.tp > 0 || in_a_node)) add_all();
      }
  if (first_obstacle != nullptr) *first_obstacle = why;
  return all;
}

}  // namespace rankwise
