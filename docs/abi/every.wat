;; Passes on every n-th record. n is the configuration value "every", one digit, 2 if it is not set.
(module
  (import "weir" "output_open" (func $output_open (param $name i32) (param $len i32) (result i32)))
  (import "weir" "config_get" (func $config_get (param $key i32) (param $len i32) (param $out i32) (param $cap i32) (result i32)))
  (import "weir" "emit" (func $emit (param $output i32) (param $ptr i32) (param $len i32) (param $count i32)))
  (import "weir" "fail" (func $fail (param $ptr i32) (param $len i32)))

  (memory (export "memory") 1)
  (data (i32.const 0) "out")
  (data (i32.const 16) "every")
  (data (i32.const 32) "config every: must be one digit from 1 to 9")

  ;; State. Globals are captured as memory is; they need not be exported.
  (global $out (mut i32) (i32.const -1))   ;; the host's index of the output, -1: the job does not use it
  (global $every (mut i32) (i32.const 2))
  (global $seen (mut i32) (i32.const 0))   ;; records since the last one that was passed on

  (func (export "weir_abi_v1"))

  ;; Whole new pages for every buffer: the host asks seldom, and each time for twice as much.
  (func (export "weir_alloc") (param $size i32) (result i32)
    (local $page i32)
    (local.set $page
      (memory.grow (i32.shr_u (i32.add (local.get $size) (i32.const 65535)) (i32.const 16))))
    (if (result i32) (i32.eq (local.get $page) (i32.const -1))
      (then (i32.const 0))                                  ;; out of memory
      (else (i32.shl (local.get $page) (i32.const 16)))))

  (func (export "weir_init") (result i32)
    (local $len i32)
    (local $digit i32)
    (global.set $out (call $output_open (i32.const 0) (i32.const 3)))
    ;; The value goes to address 24, where there is room for one byte.
    (local.set $len (call $config_get (i32.const 16) (i32.const 5) (i32.const 24) (i32.const 1)))
    (if (i32.eq (local.get $len) (i32.const -1)) (then (return (i32.const 0))))
    (local.set $digit (i32.sub (i32.load8_u (i32.const 24)) (i32.const 48)))
    (if (i32.or (i32.ne (local.get $len) (i32.const 1))
                (i32.gt_u (i32.sub (local.get $digit) (i32.const 1)) (i32.const 8)))
      (then
        (call $fail (i32.const 32) (i32.const 43))
        (return (i32.const 1))))
    (global.set $every (local.get $digit))
    (i32.const 0))

  ;; What is passed on is moved to the front of the input buffer, which the host reads after the call.
  (func (export "weir_process") (param $input i32) (param $ptr i32) (param $len i32) (param $count i32) (result i32)
    (local $at i32)     ;; of the record being looked at
    (local $to i32)     ;; where the next one that is passed on goes
    (local $size i32)   ;; of the record, its size field included
    (local $kept i32)
    (local.set $at (local.get $ptr))
    (local.set $to (local.get $ptr))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (local.set $size (i32.add (i32.load (local.get $at)) (i32.const 4)))
        (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
        (if (i32.eq (global.get $seen) (global.get $every))
          (then
            (global.set $seen (i32.const 0))
            (memory.copy (local.get $to) (local.get $at) (local.get $size))
            (local.set $to (i32.add (local.get $to) (local.get $size)))
            (local.set $kept (i32.add (local.get $kept) (i32.const 1)))))
        (local.set $at (i32.add (local.get $at) (local.get $size)))
        (br $next)))
    (if (i32.and (i32.gt_u (local.get $kept) (i32.const 0)) (i32.ge_s (global.get $out) (i32.const 0)))
      (then
        (call $emit (global.get $out) (local.get $ptr) (i32.sub (local.get $to) (local.get $ptr)) (local.get $kept))))
    (i32.const 0)))
