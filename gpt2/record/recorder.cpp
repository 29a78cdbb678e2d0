#include "gpt2/record/recorder.hpp"

#include <fnmatch.h>
#include <utility>

#include <fmt/format.h>

#include "common/base/text.hpp"

namespace rankwise {

namespace {

/// The values of a tensor as f32 on the host.
std::vector<float> host_values(Stream& stream, const Tensor& tensor)
{
  if (tensor.type() == DType::f32) return to_host<float>(stream, tensor);
  std::vector<float> values;
  with_real_type(tensor.type(), [&]<class T>(T) {
    const std::vector<T> own = to_host<T>(stream, tensor);
    values.reserve(own.size());
    for (const T value : own) values.push_back(static_cast<float>(value));
  });
  return values;
}

/// The name of a layer's rows; of the gradient of the stream that enters a unit it is that of the unit before.
std::string name_of_rows(const ModelConfig& config, std::int64_t unit, Layer layer)
{
  if (unit == 0) return "embedding";
  if (unit == 2 * config.layers + 1) return layer == Layer::logits ? "logits" : "ln_f";
  const bool attention = unit % 2 == 1;
  constexpr const char* of_attention[] = {"ln_1", "attn.q_k_v", "attn.heads", "attn", "attn.stream"};
  constexpr const char* of_mlp[] = {"ln_2", "mlp.inner", "mlp.hidden", "mlp", "mlp.stream"};
  return fmt::format("h.{}.{}", (unit - 1) / 2,
                     (attention ? of_attention : of_mlp)[static_cast<std::int64_t>(layer)]);
}

/// Place in the backward pass of a unit at which the gradient of a layer's rows is complete. Parameters have the
/// places between.
std::int64_t backward_place(Layer layer)
{
  constexpr std::int64_t places[] = {6, 2, 9, 0, 9, 0};  // norm, inner, hidden, output, stream, logits
  return places[static_cast<std::int64_t>(layer)];
}

/// Place of the gradient of a unit's parameter, by its number: two parameters each of norm, first and second
/// matrix.
std::int64_t place_of_gradient(bool embedding, int number)
{
  constexpr std::int64_t of_branch[] = {7, 8, 5, 4, 3, 1};
  if (number < 0) return 1;  // the head's product with its input
  return embedding ? 1 - number : of_branch[number];
}

}  // namespace

Recorder::Recorder(Stream& stream, const ModelConfig& config, std::int64_t G, std::int64_t T, bool runs, int device,
                   const std::string& values)
    : stream_(stream), config_(config), G_(G), T_(T), runs_(runs), device_(device), patterns_(split(values, ','))
{
  for (const std::string& name : record_names(config)) number_of_.emplace(name, std::ssize(number_of_));
}

const ParameterTable& Recorder::table_of(Part part)
{
  return tables_.try_emplace({part.index, part.count}, config_, part).first->second;
}

void Recorder::add(const RecordEntry& entry, const std::string& name, std::vector<float> values)
{
  RecordEntry noted = entry;
  noted.step = step_, noted.device = device_, noted.tensor = number_of_.at(name);
  entries_.push_back(noted);
  for (const std::string& pattern : patterns_)
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return values_.push_back({noted, std::move(values)});
}

void Recorder::rows(StepPhase phase, std::int64_t unit, Layer layer, const Tensor& values, const Rows& rows,
                    const RecordedColumns& columns)
{
  const bool backward = phase == StepPhase::backward, enters = backward && layer == Layer::stream;
  const std::string name = name_of_rows(config_, enters ? unit - 1 : unit, layer);
  const std::int64_t order = backward ? (2 * config_.layers + 1 - unit) * 16 + backward_place(layer)
                                      : unit * 16 + static_cast<std::int64_t>(layer);
  const std::int64_t stride = values.elements() / rows.count(), w = stride / columns.sections;
  // Normalised rows that are gathered again are not noted: this rank has only its own.
  if (layer == Layer::norm && stride != config_.channels) return;
  const std::int64_t whole = columns.whole > 0 ? columns.whole : w * columns.part.count;
  const Piece piece{.rows = rows.tokens,
                    .columns = intersect({columns.part.index * w, w}, {0, whole}),
                    .whole_columns = whole,
                    .sections = columns.sections};
  const std::vector<float> host = host_values(stream_, values);
  for (std::int64_t b = 0; b < rows.sequences.count && rows.sequences.first + b < G_; ++b) {
    const float* const first = host.data() + b * rows.tokens.count * stride;
    std::vector<float> kept;  // without the padding of a vocabulary
    for (std::int64_t row = 0; row < rows.tokens.count && !patterns_.empty(); ++row)
      kept.insert(kept.end(), first + row * stride, first + row * stride + piece.sections * piece.columns.count);
    add({.phase = phase,
         .order = order,
         .sequences = {rows.sequences.first + b, 1},
         .rows = piece.rows,
         .columns = piece.columns,
         .value = condense(piece, first, stride)},
        name, std::move(kept));
  }
}

void Recorder::gradient(std::int64_t unit, int number, const Tensor& values, const Rows& rows, Part part)
{
  // Gradients of runs of tokens, or of sequences that are added to those before, depend on how the batch is cut.
  if (!runs_ || rows.tokens.count < T_) return;
  const bool from_head = number < 0;
  const ParameterTable& table = table_of(part);
  const std::int64_t owner = from_head ? 0 : unit;
  int of_unit = 0;
  for (const Parameter& p : table.entries()) {
    if (p.unit != owner || p.expert >= 0 || of_unit++ != std::max(number, 0)) continue;
    parameter(StepPhase::backward, (2 * config_.layers + 1 - unit) * 16 + place_of_gradient(unit == 0, number),
              from_head ? "wte.weight of the head" : p.name, intersect(rows.sequences, {0, G_}), table, p,
              {0, p.elements.count}, host_values(stream_, values).data());
  }
}

void Recorder::shard(StepPhase phase, State state, const ParameterTable& table, Range owned, const Tensor& values)
{
  constexpr const char* prefixes[] = {"", "first moment of ", "second moment of "};
  constexpr std::int64_t places[] = {2, 0, 1};  // AdamW updates the moments first
  const std::vector<float> host = host_values(stream_, values);
  for (const Parameter& p : table.entries()) {
    const Range mine = intersect(p.elements, owned);
    if (mine.empty()) continue;
    const auto kind = static_cast<std::size_t>(state);
    parameter(phase, p.number * 3 + places[kind], prefixes[kind] + p.name, {0, G_}, table, p,
              {mine.first - p.elements.first, mine.count}, host.data() + (mine.first - owned.first));
  }
}

/// Notes elements of a stored tensor, without padding.
void Recorder::parameter(StepPhase phase, std::int64_t order, const std::string& name, Range sequences,
                         const ParameterTable& table, const Parameter& p, Range elements, const float* values)
{
  const auto columns_of = [](const Shape& shape) { return shape[shape.rank() - 1]; };
  const std::vector<Slab> slabs = table.slabs(p);
  RecordEntry entry{
      .phase = phase, .order = order, .sequences = sequences, .rows = elements, .columns = slabs[0].columns};
  if (p.split == Split::rows) entry.columns = slabs[0].rows;
  for (const Slab& slab : slabs)
    for (std::int64_t r = 0; r < slab.rows.count; ++r) {
      const std::int64_t stored = (slab.stored_row + r) * columns_of(p.stored) + slab.stored_column;
      const Range run = intersect({stored, slab.columns.count}, elements);
      if (run.empty()) continue;
      const std::int64_t whole =
          (slab.rows.first + r) * columns_of(p.shape) + slab.columns.first + run.first - stored;
      entry.value += condense(whole, values + (run.first - elements.first), run.count);
    }
  add(entry, name, patterns_.empty() ? std::vector<float>() : std::vector(values, values + elements.count));
}

void Recorder::number(const std::string& name, double value)
{
  add({.phase = StepPhase::norm,
       .order = number_of_.at(name),
       .sequences = {0, G_},
       .rows = {0, 1},
       .columns = {0, 1},
       .value = condense(value)},
      name, {static_cast<float>(value)});
}

std::vector<RecordEntry> Recorder::take_entries()
{
  return std::exchange(entries_, {});
}

std::vector<RecordedValues> Recorder::take_values()
{
  return std::exchange(values_, {});
}

}  // namespace rankwise
