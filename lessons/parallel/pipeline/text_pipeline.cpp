#include "lessons/parallel/pipeline/text_pipeline.hpp"

#include "common/collectives/collectives.hpp"

namespace rankwise {

void pass_through(const std::vector<PipelineStage>& stages, Group& line, const std::vector<GeneratingPass>& passes,
                  const std::function<void(const PipelineStage& stage, std::size_t place)>& compute)
{
  const int p = line.ranks();
  for (const PipelineStage& stage : stages) {
    const int rank = stage.number % p;
    const bool mine = rank == line.rank();
    const auto place = static_cast<std::size_t>(stage.number / p);
    if (mine) compute(stage, place);
    if (stage.last) continue;
    const std::size_t next = static_cast<std::size_t>((stage.number + 1) / p) % passes.size();
    broadcast(mine ? passes[place].rows_behind() : passes[next].rows(0), rank, line);
  }
}

TextPipeline::TextPipeline(Run& run, const PipelinePlan& plan, const std::vector<LocalStage>& stages, Group& line)
    : run_(run), plan_(plan), stages_(stages), line_(line)
{
  for (const LocalStage& own : stages)
    passes_.emplace_back(run.memory, *run.stream, own.model, run.shape.type, run.batch.sequence);
}

Token TextPipeline::next_token(std::span<const Token> text, std::int64_t number)
{
  std::int64_t token = 0;  // on the rank that has the head; zero on the others
  for (GeneratingPass& pass : passes_) pass.begin(text);
  pass_through(plan_.stages, line_, passes_, [&](const PipelineStage& stage, std::size_t place) {
    GeneratingPass& pass = passes_[place];
    const ModelTensors& weights = stages_[place].weights;
    if (stage.first) pass.embedding(weights.embedding);
    for (std::size_t i = 0; i < weights.branches.size(); ++i) pass.branch(i, weights.branches[i]);
    if (stage.last) token = pick_token(pass.head(weights.head), run_.options.sampling, number);
  });
  // The last stage has drawn the token. A sum with the zeros of the other ranks gives it to all of them.
  for (GeneratingPass& pass : passes_) pass.end();
  all_reduce_sum(token, line_);
  return static_cast<Token>(token);
}

}  // namespace rankwise
