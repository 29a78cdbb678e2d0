#include "lessons/parallel/mesh/text_on_mesh.hpp"

#include "common/collectives/collectives.hpp"
#include "lessons/parallel/pipeline/text_pipeline.hpp"

namespace rankwise {

TextOnMesh::TextOnMesh(Run& run, const PipelinePlan& plan, const std::vector<LocalStage>& stages, Group& pp,
                       Group& tp)
    : run_(run),
      plan_(plan),
      stages_(stages),
      pp_(pp),
      tp_(tp),
      logits_(run.memory, Category::workspace, run.shape.type,
              {tp.ranks() * run.config.stored_vocabulary(tp.ranks())}, "all logits")
{
  for (const LocalStage& own : stages)
    passes_.emplace_back(run.memory, *run.stream, own.model, run.shape.type, run.batch.sequence);
}

std::vector<float> gather_logits(const Run& run, const Tensor& part, const Tensor& all, Group& tp)
{
  run.stream->copy(all.slice({tp.rank() * part.elements(), part.elements()}), part);
  all_gather(all, tp);
  return read_logits(*run.stream, all, run.config);
}

Token TextOnMesh::next_token(std::span<const Token> text, std::int64_t number)
{
  std::int64_t token = 0;  // on the ranks that have the head; zero on the others
  for (GeneratingPass& pass : passes_) pass.begin(text);
  pass_through(plan_.stages, pp_, passes_, [&](const PipelineStage& stage, std::size_t place) {
    GeneratingPass& pass = passes_[place];
    const ModelTensors& weights = stages_[place].weights;
    if (stage.first) {
      all_reduce_sum(pass.lookup(weights.embedding), tp_);
      pass.add(weights.embedding);
    }
    for (std::size_t i = 0; i < weights.branches.size(); ++i) {
      all_reduce_sum(pass.apply(i, weights.branches[i]), tp_);
      pass.add(i, weights.branches[i]);
    }
    if (stage.last)
      token = pick_token(gather_logits(run_, pass.logits(weights.head), logits_.tensor(), tp_),
                         run_.options.sampling, number);
  });
  for (GeneratingPass& pass : passes_) pass.end();
  all_reduce_sum(token, pp_);
  return static_cast<Token>(token);
}

}  // namespace rankwise
