-- Lint of the Lua scripts that Redis runs. A script's text follows those of the shared files, whose
-- definitions it uses (service/jobs/scripts/composition.py). luacheck reads one file at a time, so this
-- configuration reads the names that the shared files define.

local FOLDER = "service/jobs/scripts/"
local SHARED = {"common", "order", "quota", "ledger", "transitions", "forget", "next_job"}

std = "lua51"
max_line_length = 100
read_globals = {"redis", "cjson", "KEYS", "ARGV"}
not_globals = {"debug", "dofile", "io", "loadfile", "module", "os", "package", "print", "require"}

for _, name in ipairs(SHARED) do
  local file = FOLDER .. name .. ".lua"
  local unused = {}
  for line in io.lines(file) do
    local definition = string.gsub(string.match(line, "^local ([%w_, ]+)") or "", "^function ", "")
    for defined in string.gmatch(definition, "[%w_]+") do
      table.insert(read_globals, defined)
      table.insert(unused, "211/^" .. defined .. "$")
    end
  end
  files[file].ignore = unused
end
