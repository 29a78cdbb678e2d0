#include "gpt2/parameter_table.hpp"

#include <algorithm>
#include <cmath>
#include <fnmatch.h>
#include <span>

#include <fmt/format.h>

#include "common/base/digest.hpp"
#include "gpt2/random.hpp"

namespace rankwise {

namespace {

/// The part.index-th of part.count equal runs of n elements.
Range equal_part(std::int64_t n, Part part)
{
  check(n % part.count == 0, "a tensor cannot be divided into equal parts");
  return {n / part.count * part.index, n / part.count};
}

std::int64_t columns_of(const Shape& shape)
{
  return shape[shape.rank() - 1];
}

double initial_deviation(Initial initial, std::int64_t layers)
{
  constexpr double deviation = 0.02;
  return initial == Initial::residual ? deviation / std::sqrt(2.0 * static_cast<double>(layers)) : deviation;
}

}  // namespace

ParameterTable::ParameterTable(const ModelConfig& config, Part part, Range units, std::int64_t replicated,
                               Range experts)
    : part_(part),
      units_(units.count < 0 ? Range{0, unit_count(config)} : units),
      stored_experts_(experts.count < 0 ? Range{0, config.experts.count} : experts),
      frozen_(config.frozen)
{
  check(config.heads % part.count == 0, "the heads of a layer cannot be divided equally");
  const bool bert = config.architecture == Architecture::bert;
  check(!bert || part.count == 1, "tensor parallelism does not divide a BERT");
  bert ? add_bert_embedding(config) : add_embedding(config);
  for (int branch = 0; branch < 2 * config.layers; ++branch)
    bert ? add_bert_branch(config, branch) : add_branch(config, branch);
  bert ? add_bert_head(config) : add_head(config);
  lay_out(replicated);
}

void ParameterTable::add_embedding(const ModelConfig& config)
{
  const std::int64_t C = config.channels;
  add({.name = "wte.weight",
       .shape = {config.vocabulary, C},
       .stored = {config.stored_vocabulary(part_.count), C},
       .initial = Initial::normal,
       .split = Split::rows,
       .one_product = true});
  add({.name = "wpe.weight",
       .shape = {config.context, C},
       .stored = {config.context, C},
       .initial = Initial::normal});
}

void ParameterTable::add_branch(const ModelConfig& config, int branch)
{
  const bool attention = branch % 2 == 0;
  const std::string block = fmt::format("h.{}.", branch / 2);
  const std::string in = block + (attention ? "attn.c_attn" : "mlp.c_fc");
  const std::string out = block + (attention ? "attn.c_proj" : "mlp.c_proj");
  const std::int64_t C = config.channels, n = part_.count;
  const std::int64_t F = attention ? 3 * C : 4 * C;
  const std::int64_t hidden = attention ? C : 4 * C;
  const int unit = 1 + branch;
  const int sections = attention ? 3 : 1;

  add_norm(block + (attention ? "ln_1" : "ln_2"), C, unit);
  if (!attention && config.has_experts(branch / 2)) return add_experts(config, branch);
  add({.name = in + ".weight",
       .shape = {C, F},
       .stored = {C, F / n},
       .unit = unit,
       .initial = Initial::normal,
       .split = Split::columns,
       .sections = sections,
       .one_product = true});
  add({.name = in + ".bias",
       .shape = {F},
       .stored = {F / n},
       .unit = unit,
       .split = Split::columns,
       .sections = sections});
  add({.name = out + ".weight",
       .shape = {hidden, C},
       .stored = {hidden / n, C},
       .unit = unit,
       .initial = Initial::residual,
       .split = Split::rows,
       .one_product = true});
  add({.name = out + ".bias", .shape = {C}, .stored = {C}, .unit = unit});
}

void ParameterTable::add_experts(const ModelConfig& config, int branch)
{
  const std::string mlp = fmt::format("h.{}.mlp.", branch / 2);
  const std::int64_t C = config.channels, E = config.experts.count, F = 4 * C, here = F / part_.count;
  const auto add_tensor = [&](int expert, const std::string& name, const Shape& shape, const Shape& stored,
                              Initial initial, Split split) {
    add({.name = mlp + name,
         .shape = shape,
         .stored = stored,
         .unit = 1 + branch,
         .initial = initial,
         .split = split,
         .expert = expert});
  };
  add_tensor(-1, "router.weight", {C, E}, {C, E}, Initial::normal, Split::none);
  for (int e = 0; e < E; ++e) {
    const std::string name = fmt::format("experts.{}.", e);
    add_tensor(e, name + "c_fc.weight", {C, F}, {C, here}, Initial::normal, Split::columns);
    add_tensor(e, name + "c_fc.bias", {F}, {here}, Initial::zero, Split::columns);
    add_tensor(e, name + "c_proj.weight", {F, C}, {here, C}, Initial::residual, Split::rows);
    add_tensor(e, name + "c_proj.bias", {C}, {C}, Initial::zero, Split::none);
  }
}

void ParameterTable::add_head(const ModelConfig& config)
{
  add_norm("ln_f", config.channels, static_cast<int>(unit_count(config)) - 1);
}

void ParameterTable::add_norm(const std::string& name, std::int64_t C, int unit)
{
  add({.name = name + ".weight", .shape = {C}, .stored = {C}, .unit = unit, .initial = Initial::one});
  add({.name = name + ".bias", .shape = {C}, .stored = {C}, .unit = unit});
}

void ParameterTable::add(Parameter parameter)
{
  parameter.number = next_number_++;
  if (!units_.contains(parameter.unit)) return;
  if (parameter.expert >= 0 && !stored_experts_.contains(parameter.expert)) return;
  parameter.decays = parameter.shape.rank() == 2;
  parameter.frozen = std::ranges::any_of(frozen_, [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), parameter.name.c_str(), 0) == 0;
  });
  entries_.push_back(std::move(parameter));
}

/// Gives the tensors that are @p chosen the next elements of the flat vector, and returns which these are.
Range ParameterTable::place_those(const std::function<bool(const Parameter&)>& chosen)
{
  const std::int64_t first = elements_;
  for (Parameter& p : entries_) {
    if (!chosen(p)) continue;
    p.elements = {elements_, p.stored.elements()};
    elements_ += p.elements.count;
  }
  return {first, elements_ - first};
}

void ParameterTable::lay_out(std::int64_t replicated)
{
  const auto is_small = [&](const Parameter& p) { return p.stored.elements() <= replicated; };
  place_those([&](const Parameter& p) { return p.expert < 0 && !is_small(p); });
  replicated_ = place_those([&](const Parameter& p) { return p.expert < 0 && is_small(p); });
  experts_ = place_those([](const Parameter& p) { return p.expert >= 0; });
}

namespace {

/// The tensors of a unit: entries are in the order of units.
std::span<const Parameter> of_unit(const std::vector<Parameter>& entries, int unit)
{
  return {std::ranges::lower_bound(entries, unit, {}, &Parameter::unit),
          std::ranges::upper_bound(entries, unit, {}, &Parameter::unit)};
}

}  // namespace

Range ParameterTable::unit_elements(int unit) const
{
  Range elements{0, 0};
  for (const Parameter& p : of_unit(entries_, unit)) {
    if (p.expert >= 0 || replicated_.contains(p.elements.first)) continue;
    if (elements.empty()) elements.first = p.elements.first;
    elements.count += p.elements.count;
  }
  return elements;
}

std::vector<Range> frozen_ranges(const ParameterTable& table, Range elements)
{
  std::vector<Range> frozen;
  for (const Parameter& p : table.entries()) {
    const Range both = intersect(p.elements, elements);
    if (p.frozen && !both.empty()) frozen.push_back({both.first - elements.first, both.count});
  }
  return frozen;
}

std::vector<Slab> ParameterTable::slabs(const Parameter& parameter) const
{
  if (part_.count == 1)  // a table of whole tensors
    return {{{0, parameter.shape.rank() == 2 ? parameter.shape[0] : 1}, {0, columns_of(parameter.shape)}}};
  // BEGIN EXERCISE 08.2
  const std::int64_t rows = parameter.shape.rank() == 2 ? parameter.shape[0] : 1;
  const std::int64_t columns = columns_of(parameter.shape);
  if (parameter.split == Split::none) return {{{0, rows}, {0, columns}}};
  if (parameter.split == Split::rows) {
    const std::int64_t stored_rows = parameter.stored[0];
    return {{intersect({stored_rows * part_.index, stored_rows}, {0, rows}), {0, columns}}};
  }
  std::vector<Slab> slabs;
  const std::int64_t section = columns / parameter.sections;
  const Range mine = equal_part(section, part_);
  for (int s = 0; s < parameter.sections; ++s)
    slabs.push_back({{0, rows}, {s * section + mine.first, mine.count}, 0, s * mine.count});
  return slabs;
  // END EXERCISE
}

std::vector<Tensor> unit_tensors(const ParameterTable& table, int unit, const Tensor& flat,
                                 const Tensor& replicated)
{
  std::vector<Tensor> tensors;
  const std::int64_t first = table.unit_elements(unit).first;
  for (const Parameter& p : of_unit(table.entries(), unit)) {
    if (p.expert >= 0) continue;
    const bool is_replicated = table.replicated().contains(p.elements.first);
    const Range elements{p.elements.first - (is_replicated ? table.replicated().first : first), p.elements.count};
    tensors.push_back((is_replicated ? replicated : flat).slice(elements).reshaped(p.stored));
  }
  return tensors;
}

EmbeddingTensors embedding_tensors(const std::vector<Tensor>& tensors)
{
  check(tensors.size() == 2, "not the tensors of the embedding");
  return {tensors[0], tensors[1]};
}

BranchTensors branch_tensors(const std::vector<Tensor>& tensors)
{
  if (tensors.size() == 3) return {tensors[0], tensors[1], {}, {}, {}, {}, tensors[2]};
  check(tensors.size() == 6, "not the tensors of a branch");
  return {tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5]};
}

std::vector<ExpertTensors> expert_tensors(const ParameterTable& table, int unit, const Tensor& flat)
{
  std::vector<Tensor> tensors;
  for (const Parameter& p : of_unit(table.entries(), unit))
    if (p.expert >= 0)
      tensors.push_back(
          flat.slice({p.elements.first - table.experts().first, p.elements.count}).reshaped(p.stored));
  std::vector<ExpertTensors> experts;
  for (std::size_t i = 0; i < tensors.size(); i += 4)
    experts.push_back({tensors[i], tensors[i + 1], tensors[i + 2], tensors[i + 3]});
  return experts;
}

HeadTensors head_tensors(const std::vector<Tensor>& tensors, const Tensor& token)
{
  check(tensors.size() == 2, "not the tensors of the head");
  return {tensors[0], tensors[1], token};
}

ModelTensors model_tensors(const ParameterTable& table, const Tensor& flat, const Tensor& tied)
{
  const bool with_experts = flat.elements() == table.elements();
  check(with_experts || flat.elements() == table.experts().first,
        "the flat vector has another size than its table");
  ModelTensors model;
  const int head = static_cast<int>(table.units().count) - 1;
  const auto unit = [&](int u) { return unit_tensors(table, u, flat.slice(table.unit_elements(u))); };
  model.embedding = embedding_tensors(unit(0));
  for (int u = 1; u < head; ++u) {
    model.branches.push_back(branch_tensors(unit(u)));
    if (with_experts) model.branches.back().experts = expert_tensors(table, u, flat.slice(table.experts()));
  }
  const Tensor& token = model.embedding.token;
  model.head = head_tensors(unit(head), tied.empty() ? token : tied.reshaped(token.shape()));
  return model;
}

namespace {

/// Fills the elements @p wanted of one stored tensor with their initial values, row by row.
template <class T>
std::vector<T> initial_values(const ParameterTable& table, const Parameter& p, Range wanted, std::int64_t layers,
                              std::uint32_t seed)
{
  std::vector<T> values(static_cast<std::size_t>(wanted.count), T(0.0f));
  if (p.initial == Initial::zero) return values;
  const double deviation = initial_deviation(p.initial, layers);
  const std::int64_t columns = columns_of(p.shape), stored_columns = columns_of(p.stored);
  for (const Slab& slab : table.slabs(p))
    for (std::int64_t r = 0; r < slab.rows.count; ++r) {
      const std::int64_t stored = (slab.stored_row + r) * stored_columns + slab.stored_column;
      const std::int64_t whole = (slab.rows.first + r) * columns + slab.columns.first;
      const Range run = intersect({stored, slab.columns.count}, wanted);
      for (std::int64_t at = run.first; at < run.end(); ++at) {
        const std::int64_t element = whole + at - stored;
        const double value = p.initial == Initial::one ? 1 : deviation * initial_normal(seed, p.number, element);
        values[static_cast<std::size_t>(at - wanted.first)] = T(static_cast<Accumulator<T>>(value));
      }
    }
  return values;
}

}  // namespace

void initialize_parameters(Stream& stream, const Tensor& flat, const ParameterTable& table,
                           const ModelConfig& config, std::uint32_t seed, std::int64_t first)
{
  const Range owned{first, flat.elements()};
  check(first >= 0 && owned.end() <= table.elements(), "the elements to initialize are not in the table");
  with_real_type(flat.type(), [&]<class T>(T) {
    for (const Parameter& p : table.entries()) {
      const Range mine = intersect(p.elements, owned);
      if (mine.empty()) continue;
      const Range wanted{mine.first - p.elements.first, mine.count};
      std::vector<T> values = initial_values<T>(table, p, wanted, config.layers, seed);
      stream.copy(flat.slice({mine.first - first, mine.count}), Tensor(values.data(), dtype_of<T>(), {mine.count}));
      stream.synchronise();
    }
  });
}

std::string parameter_digest(Stream& stream, const ParameterTable& table, const Tensor& flat)
{
  Sha256 digest;
  for (const Parameter& p : table.entries()) {
    const Tensor natural = flat.slice({p.elements.first, p.shape.elements()});
    const std::vector<float> values = to_host<float>(stream, natural);
    digest.update(std::as_bytes(std::span(values)));
  }
  return digest.hex();
}

}  // namespace rankwise
