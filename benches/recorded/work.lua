-- Strings, tables and calls: the argument says how many.
local n = tonumber(arg[1])
local function fib(x) if x < 2 then return x end return fib(x - 1) + fib(x - 2) end
local words = {}
for i = 1, n do
  local word = string.format("%x", i * 7919 % 65537)
  words[#words + 1] = word:reverse():upper()
end
table.sort(words)
local count = {}
for _, word in ipairs(words) do
  local key = word:sub(1, 2)
  count[key] = (count[key] or 0) + fib(5)
end
