#pragma once

#include "unpack/config.h"
#include "unpack/error.h"
#include "unpack/model.h"
#include "unpack/options.h"
#include "unpack/prepared.h"
#include "unpack/report.h"
#include "unpack/result.h"
#include "unpack/run_context.h"
#include "unpack/tokenizer.h"
#include "unpack/writers.h"
