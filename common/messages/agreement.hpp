#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/messages/communicator.hpp"

/// @file
/// Checks that all ranks run the same program with the same options and files.

namespace rankwise {

/// Gathers one text from each rank on all ranks. All ranks make this call.
/// @param communicator  the ranks.
/// @param own           this rank's text.
/// @return  the texts, by rank.
std::vector<std::string> gather_texts(const Communicator& communicator, const std::string& own);

/// Rejects a job whose ranks differ in what they run, were asked for or read. All ranks make this call.
/// @param communicator  the ranks.
/// @param facts         names and values, as {"--global-batch", "16"}; the same names on all ranks.
/// @throws UserError    on all ranks: the first name whose values differ, and which rank has which value.
void check_agreement(const Communicator& communicator,
                     const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace rankwise
