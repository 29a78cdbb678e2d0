#include "lessons/13_mesh_zero3/text_on_shards.hpp"

#include "common/collectives/collectives.hpp"
#include "lessons/parallel/pipeline/text_pipeline.hpp"

namespace rankwise {

TextOnShards::TextOnShards(Run& run, const Model& model, OffloadedParameters& parameters, Group& tp)
    : run_(run),
      model_(model),
      parameters_(parameters),
      tp_(tp),
      pass_(run.memory, *run.stream, model, run.shape.type, run.batch.sequence)
{
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
  const std::vector<float> logits = gather_logits(run_, pass_.logits(p), tp_);
  parameters_.end();
  return pick_token(logits, run_.options.sampling, number);
}

}  // namespace rankwise
