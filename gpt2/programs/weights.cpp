// Imports the published weights of a GPT-2 or a BERT, for fine-tuning with --initial=FILE.h5, and exports the
// weights of a checkpoint.
//
// Sample runs:  build/data/weights import model.safetensors gpt2.h5
//               build/data/weights import FOLDER gpt2.h5                   (as save_pretrained() of transformers wrote it)
//               build/data/weights export gpt2.h5 model.safetensors
//               build/data/weights export gpt2.h5 FOLDER                   (for from_pretrained())

#include "gpt2/files/weights.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/named_files.hpp"
#include "common/messages/program.hpp"

namespace rankwise {

namespace {

/// The work of a checked command line. Rank 0 does it; other ranks have nothing to do.
struct Job {
  std::int64_t heads = 0;                     // --heads
  bool allow_not_finite = false;              // --allow-not-finite
  std::unique_ptr<PublishedModel> published;  // to import
  std::optional<CheckpointInfo> checkpoint;   // to export
  std::vector<FileLock> locks;                // lock of the file to write
};

/// Makes a folder in an existing one, if it is not there.
void make_folder(const std::string& path)
{
  std::error_code error;
  std::filesystem::create_directory(path, error);
  if (std::filesystem::is_directory(path, error)) return;
  throw UserError(fmt::format("{} is not a folder, and none can be made there.", path),
                  "Name a folder in an existing one, or a file, as model.safetensors.");
}

/// Refuses the weights of a run with another mask than transformers' GPT-2 has.
void check_mask(const CheckpointInfo& info, const std::string& path)
{
  if (info.config.architecture == Architecture::bert) return;
  for (const RunOption& option : info.options)
    if (option.name == "mask" && option.value != "causal")
      throw UserError(
          fmt::format("{} was trained with --mask={}.", path, option.value),
          "GPT-2 in transformers has a causal mask, and would compute something else with these weights.");
}

/// Checks the command line and the files, and leaves @p job ready to run.
void check_job(const std::vector<std::string>& words, Job& job)
{
  const std::string usage =
      "build/data/weights import [--heads=H] [--allow-not-finite] MODEL.safetensors|FOLDER FILE.h5\n"
      "build/data/weights export FILE.h5 MODEL.safetensors|FOLDER";
  if (words.size() != 3)
    throw UserError(fmt::format("a command and two files are needed; {} words given.", words.size()), usage);
  const std::string &command = words[0], &from = words[1], &to = words[2];
  if (command != "import" && command != "export")
    throw UserError(fmt::format("{} is not a command.", command), usage);
  std::vector<NamedFile> named{
      {.path = from, .asked = from, .use = FileUse::read},
      {.path = to, .asked = to, .use = FileUse::replace, .kind = command == "import" ? checkpoint_seal : ""}};
  std::error_code unseen;  // what is wrong with the path is said where it is opened
  if (std::filesystem::is_directory(from, unseen)) named.erase(named.begin());
  if (command == "export") {
    job.checkpoint = check_checkpoint(from, from);
    check_mask(*job.checkpoint, from);
    if (names_folder(to)) {
      make_folder(to);
      named.pop_back();
      for (const char* const name : {"model.safetensors", "config.json", "generation_config.json"}) {
        const std::string file = std::filesystem::path(to) / name;
        named.push_back({.path = file, .asked = file, .use = FileUse::replace});
      }
    }
  }
  check_files(named);
  if (command == "import") {
    job.published = std::make_unique<PublishedModel>(from, job.heads);
    if (!job.allow_not_finite) job.published->check_finite();
  }
  job.locks = lock_files(named);
}

void run_job(const std::vector<std::string>& words, Job& job)
{
  const std::vector<FileLock> locks = std::move(job.locks);  // an exception removes their files
  const ModelConfig config = job.published ? job.published->config() : job.checkpoint->config;
  if (job.published)
    job.published->save(words[2]);
  else if (names_folder(words[2]))
    publish_folder(words[1], config, words[2]);
  else
    publish(words[1], config, words[2]);
  const std::string result = fmt::format("{}: {} parameters, L={} H={} C={} V={}, context {}\n", words[2],
                                         group_digits(config.parameters()), config.layers, config.heads,
                                         config.channels, config.vocabulary, config.context);
  check_system(print_text(stdout, result), "print the result");
}

}  // namespace

}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  Job job;
  OptionTable table("weights",
                    "Imports and exports weights in Hugging Face's format: weights import|export FROM TO");
  table.add("model", "heads", job.heads, "attention heads, for import; 0: one for every 64 channels");
  table.add("model", "allow-not-finite", job.allow_not_finite, "also import weights that are NaN or infinite");
  return run_file_program(
      argc, argv, table, [&](const std::vector<std::string>& words) { check_job(words, job); },
      [&](const std::vector<std::string>& words) {
        run_job(words, job);
        return exit_success;
      });
}
