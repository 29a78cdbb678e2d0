#include "lessons/13_mesh_zero3/text_on_shards.hpp"

#include "common/collectives/collectives.hpp"

namespace rankwise {

TextOnShards::TextOnShards(Run& run, const Model& model, OffloadedParameters& parameters, Group& tp)
    : run_(run),
      model_(model),
      parameters_(parameters),
      tp_(tp),
      pass_(run.memory, *run.stream, model, run.shape.type, run.batch.sequence)
{
}

/// The logits of the whole vocabulary, of one row.
Tensor TextOnShards::all_logits(const Tensor& own)
{
  const std::int64_t n = own.elements();
  if (logits_.tensor().empty())
    logits_ = Buffer(run_.memory, Category::workspace, own.type(), {tp_.ranks() * n}, "all logits");
  run_.stream->copy(logits_.tensor().slice({tp_.rank() * n, n}), own);
  all_gather(logits_.tensor(), tp_);
  return logits_.tensor();
}

Token TextOnShards::next_token(std::span<const Token> text, std::int64_t number)
{
  const std::int64_t head = unit_count(run_.config) - 1;
  pass_.begin(text);
  parameters_.begin(uses_of(run_.options, false));
  const EmbeddingTensors embedding = embedding_tensors(parameters_.use(0));
  all_reduce_sum(pass_.lookup(embedding), tp_);
  pass_.add(embedding);
  for (std::size_t i = 0; i < model_.branches.size(); ++i) {
    const BranchTensors p = branch_tensors(parameters_.use(model_.branches[i].unit()));
    all_reduce_sum(pass_.apply(i, p), tp_);
    pass_.add(i, p);
  }
  parameters_.use(head);
  const HeadTensors p = head_tensors(parameters_.of(head), embedding_tensors(parameters_.of(0)).token);
  const Tensor logits = all_logits(pass_.logits(p));
  parameters_.end();
  return pick_token(read_logits(*run_.stream, logits, run_.config), run_.options.sampling, number);
}

}  // namespace rankwise
